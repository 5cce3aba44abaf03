"""Metrics of sound event detection: event-based F1, and segment-based F1 with segments of a second.

    F1 = 2 correct / (predicted + reference), over all sounds together

A predicted event is correct if a reference event of the same label has its onset within `onset`
seconds (and, with offsets, its offset within the larger of 0.2 s and a fifth of its length); the
matching is one-to-one and maximal. Segment-based F1 is that of the labels active in each second.

Source: mesaros2016 (event-based and segment-based F1).
"""

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from regard.data.sound.events import SoundEvent
from regard.recipes.metrics.counts import precision_recall_f1

_OFFSET, _SHARE, _NO_MATCH = 0.2, 0.2, 1e6


def event_scores(
    predicted: Sequence[Sequence[SoundEvent]], reference: Sequence[Sequence[SoundEvent]]
) -> dict[str, Any]:
    """Return F1 (onsets in 50 ms; 200 ms, and offsets), segment F1, and timing errors in ms.

    Also precision, recall and F1 (onsets within 50 ms) of each label.
    """
    total = sum(map(len, predicted)) + sum(map(len, reference))
    pairs, num_standard, num_common, num_active = [], 0, 0, 0
    for a, b in zip(predicted, reference, strict=True):
        pairs += [(a[i], b[j]) for i, j in match_events(a, b, onset=0.05)]
        num_standard += len(match_events(a, b, onset=0.2, with_offset=True))
        found, present = labels_per_second(a), labels_per_second(b)
        num_common += len(found & present)
        num_active += len(found) + len(present)
    scores: dict[str, Any] = {
        "f1": 200 * len(pairs) / max(1, total),
        "f1_200ms": 200 * num_standard / max(1, total),
        "f1_segments": 200 * num_common / max(1, num_active),
    }
    classes = precision_recall_f1(
        (a.label for a, _ in pairs),
        (event.label for event in chain(*predicted)),
        (event.label for event in chain(*reference)),
    )
    if classes:
        scores["classes"] = classes
    if pairs:
        scores["onset_ms"] = 1000 * float(np.mean([abs(a.onset - b.onset) for a, b in pairs]))
        durations = [abs(a.duration - b.duration) for a, b in pairs]
        scores["duration_ms"] = 1000 * float(np.mean(durations))
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
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  # takes 0.5 s to import

    cost = np.full((len(predicted), len(reference)), _NO_MATCH)
    for i, a in enumerate(predicted):
        for j, b in enumerate(reference):
            distance, tolerance = abs(a.onset - b.onset), max(_OFFSET, _SHARE * b.duration)
            has_offset = not with_offset or abs(a.offset - b.offset) <= tolerance
            if a.label == b.label and distance <= onset and has_offset:
                cost[i, j] = distance
    rows, columns = linear_sum_assignment(cost)
    pairs = zip(rows.tolist(), columns.tolist(), strict=True)
    return [(i, j) for i, j in pairs if cost[i, j] < _NO_MATCH]


def labels_per_second(events: Sequence[SoundEvent]) -> set[tuple[int, str]]:
    """Return (second, label) for the labels active in each second."""
    active = set()
    for event in events:
        for second in range(math.floor(event.onset), math.ceil(event.offset)):
            active.add((second, event.label))
    return active
