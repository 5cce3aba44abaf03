"""Metrics of sound event detection: event-based F1, and segment-based F1 with segments of a second.

    a predicted event is correct if a reference event of the same label has its onset within `onset`
    seconds (and, with offsets, its offset within the larger of 0.2 s and a fifth of its length);
    the matching is one-to-one and maximal F1 = 2 correct / (predicted + reference), over all sounds
    together segment-based F1: of the labels active in each second

Source: mesaros2016 (event-based and segment-based F1).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from regard.data.sound.events import SoundEvent
from regard.recipes.metrics.counts import label_scores_of_sets

_OFFSET, _SHARE = 0.2, 0.2


def event_scores(
    predicted: Sequence[Sequence[SoundEvent]],
    reference: Sequence[Sequence[SoundEvent]],
    seconds: float,
) -> dict[str, Any]:
    """Return F1 (onsets within 50 ms), F1 (onsets within 200 ms, and offsets), segment F1, and
    timing errors in ms.

    Also precision, recall and F1 (onsets within 50 ms) of each label.
    """
    total = sum(map(len, predicted)) + sum(map(len, reference))
    matched = [match_events(a, b, onset=0.05) for a, b in zip(predicted, reference, strict=True)]
    standard = [
        match_events(a, b, onset=0.2, with_offset=True)
        for a, b in zip(predicted, reference, strict=True)
    ]
    pairs = [
        (a[i], b[j])
        for a, b, rows in zip(predicted, reference, matched, strict=True)
        for i, j in rows
    ]
    parts = [_count_segments(a, b, seconds) for a, b in zip(predicted, reference, strict=True)]
    both, either = (sum(part[k] for part in parts) for k in (0, 1))
    scores: dict[str, Any] = {
        "f1": 200 * len(pairs) / max(1, total),
        "f1_200ms": 200 * sum(map(len, standard)) / max(1, total),
        "f1_segments": 100 * both / max(1, either),
    }
    labels = (
        [a.label for a, _ in pairs],
        [event.label for row in predicted for event in row],
        [event.label for row in reference for event in row],
    )
    if classes := label_scores_of_sets(*labels):
        scores["classes"] = classes
    if pairs:
        scores["onset_ms"] = 1000 * float(np.mean([abs(a.onset - b.onset) for a, b in pairs]))
        scores["duration_ms"] = 1000 * float(
            np.mean([abs(a.duration - b.duration) for a, b in pairs])
        )
    return scores


def match_events(
    predicted: Sequence[SoundEvent],
    reference: Sequence[SoundEvent],
    *,
    onset: float,
    with_offset: bool = False,
) -> list[tuple[int, int]]:
    """Return index pairs (predicted, reference) of a maximal matching with nearest onsets."""
    if not predicted or not reference:
        return []
    cost = np.array([[_distance(a, b, onset, with_offset) for b in reference] for a in predicted])
    rows, columns = linear_sum_assignment(np.where(np.isinf(cost), 1e6, cost))
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True) if np.isfinite(cost[i, j])]


def labels_per_second(events: Sequence[SoundEvent], seconds: float) -> NDArray[np.object_]:
    """Return the set of labels active in each second."""
    labels = np.empty(int(np.ceil(seconds)), object)
    for second in range(len(labels)):
        labels[second] = {
            event.label for event in events if event.onset < second + 1 and event.offset > second
        }
    return labels


def _count_segments(
    predicted: Sequence[SoundEvent], reference: Sequence[SoundEvent], seconds: float
) -> tuple[int, int]:
    pairs = list(
        zip(
            labels_per_second(predicted, seconds),
            labels_per_second(reference, seconds),
            strict=True,
        )
    )
    return 2 * sum(len(a & b) for a, b in pairs), sum(len(a) + len(b) for a, b in pairs)


def _distance(a: SoundEvent, b: SoundEvent, onset: float, with_offset: bool) -> float:
    is_near = abs(a.onset - b.onset) <= onset
    has_offset = not with_offset or abs(a.offset - b.offset) <= max(_OFFSET, _SHARE * b.duration)
    return abs(a.onset - b.onset) if a.label == b.label and is_near and has_offset else np.inf
