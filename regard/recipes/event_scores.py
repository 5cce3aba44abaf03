"""How good found events are: F1 of whole events, and by segments of a second.

    an event is right if one of the same label was found whose onset is within `onset` seconds (and, where asked for,
    whose offset is within the larger of 0.2 s and a fifth of its length); each is matched once, as many as possible
    F1 = 2 right / (found + wanted), over all sounds together
    segments: which labels sound in each second; F1 of these

Source: mesaros2016 (event-based and segment-based F1).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from regard.data.events import Event

_OFFSET, _SHARE = 0.2, 0.2


def event_scores(
    found: Sequence[Sequence[Event]], wanted: Sequence[Sequence[Event]], seconds: float
) -> dict[str, float]:
    """F1 with onsets within 50 ms; the usual F1 (200 ms, offset too) and segments'; errors of the right ones in ms."""
    total = sum(map(len, found)) + sum(map(len, wanted))
    near = [matches(a, b, onset=0.05) for a, b in zip(found, wanted, strict=True)]
    usual = [matches(a, b, onset=0.2, with_offset=True) for a, b in zip(found, wanted, strict=True)]
    pairs = [(a[i], b[j]) for a, b, some in zip(found, wanted, near, strict=True) for i, j in some]
    parts = [_in_segments(a, b, seconds) for a, b in zip(found, wanted, strict=True)]
    both, either = (sum(part[k] for part in parts) for k in (0, 1))
    scores = {
        "f1": 200 * len(pairs) / max(1, total),
        "f1_200ms": 200 * sum(map(len, usual)) / max(1, total),
        "f1_segments": 100 * both / max(1, either),
    }
    if pairs:
        scores["onset_ms"] = 1000 * float(np.mean([abs(a.onset - b.onset) for a, b in pairs]))
        scores["duration_ms"] = 1000 * float(np.mean([abs(a.duration - b.duration) for a, b in pairs]))
    return scores


def matches(
    found: Sequence[Event], wanted: Sequence[Event], *, onset: float, with_offset: bool = False
) -> list[tuple[int, int]]:
    """Pairs (found, wanted) that agree, each event in one at most; as many as there can be, the nearest onsets."""
    if not found or not wanted:
        return []
    cost = np.array([[_distance(a, b, onset, with_offset) for b in wanted] for a in found])
    rows, columns = linear_sum_assignment(np.where(np.isinf(cost), 1e6, cost))
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True) if np.isfinite(cost[i, j])]


def segments(events: Sequence[Event], seconds: float) -> NDArray[np.object_]:
    """Which labels sound in each second."""
    found = np.empty(int(np.ceil(seconds)), object)
    for second in range(len(found)):
        found[second] = {one.label for one in events if one.onset < second + 1 and one.offset > second}
    return found


def _in_segments(found: Sequence[Event], wanted: Sequence[Event], seconds: float) -> tuple[int, int]:
    ours, theirs = segments(found, seconds), segments(wanted, seconds)
    pairs = list(zip(ours, theirs, strict=True))
    return 2 * sum(len(a & b) for a, b in pairs), sum(len(a) + len(b) for a, b in pairs)


def _distance(a: Event, b: Event, onset: float, with_offset: bool) -> float:
    near = abs(a.onset - b.onset) <= onset
    ends = not with_offset or abs(a.offset - b.offset) <= max(_OFFSET, _SHARE * b.duration)
    return abs(a.onset - b.onset) if a.label == b.label and near and ends else np.inf
