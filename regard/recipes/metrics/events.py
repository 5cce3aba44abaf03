"""Metrics of sound event detection: event-based F1, and segment-based F1 with segments of a second.

    a predicted event is correct if a reference event of the same label has its onset within `onset`
    seconds (and, with offsets, its offset within the larger of 0.2 s and a fifth of its length);
    the matching is one-to-one and maximal F1 = 2 correct / (predicted + reference), over all sounds
    together segment-based F1: of the labels active in each second

Source: mesaros2016 (event-based and segment-based F1).
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from regard.data.sound.events import SoundEvent
from regard.recipes.metrics.counts import label_scores_of_sets

_OFFSET, _SHARE = 0.2, 0.2


def event_scores(
    predicted: Sequence[Sequence[SoundEvent]],
    reference: Sequence[Sequence[SoundEvent]],
    seconds: float,
) -> dict[str, Any]:
    """Return F1 (onsets in 50 ms; 200 ms, and offsets), segment F1, and timing errors in ms.

    Also precision, recall and F1 (onsets within 50 ms) of each label.
    """
    total = sum(map(len, predicted)) + sum(map(len, reference))
    pairs, num_standard, num_common, num_active = [], 0, 0, 0
    for a, b in zip(predicted, reference, strict=True):
        pairs += [(a[i], b[j]) for i, j in match_events(a, b, onset=0.05)]
        num_standard += len(match_events(a, b, onset=0.2, with_offset=True))
        active = labels_per_second(a, seconds), labels_per_second(b, seconds)
        for own, other in zip(*active, strict=True):
            num_common += len(own & other)
            num_active += len(own) + len(other)
    scores: dict[str, Any] = {
        "f1": 200 * len(pairs) / max(1, total),
        "f1_200ms": 200 * num_standard / max(1, total),
        "f1_segments": 200 * num_common / max(1, num_active),
    }
    labels = (
        [a.label for a, _ in pairs],
        [event.label for row in predicted for event in row],
        [event.label for row in reference for event in row],
    )
    if classes := label_scores_of_sets(*labels):
        scores["classes"] = classes
    if pairs:
        onsets = [abs(a.onset - b.onset) for a, b in pairs]
        durations = [abs(a.duration - b.duration) for a, b in pairs]
        scores["onset_ms"] = 1000 * float(np.mean(onsets))
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
    cost = np.array([[_distance(a, b, onset, with_offset) for b in reference] for a in predicted])
    rows, columns = linear_sum_assignment(np.where(np.isinf(cost), 1e6, cost))
    return [(int(i), int(j)) for i, j in zip(rows, columns, strict=True) if np.isfinite(cost[i, j])]


def labels_per_second(events: Sequence[SoundEvent], seconds: float) -> list[set[str]]:
    """Return the set of labels active in each second."""
    return [
        {event.label for event in events if event.onset < second + 1 and event.offset > second}
        for second in range(math.ceil(seconds))
    ]


def _distance(a: SoundEvent, b: SoundEvent, onset: float, with_offset: bool) -> float:
    is_near = abs(a.onset - b.onset) <= onset
    has_offset = not with_offset or abs(a.offset - b.offset) <= max(_OFFSET, _SHARE * b.duration)
    return abs(a.onset - b.onset) if a.label == b.label and is_near and has_offset else np.inf
