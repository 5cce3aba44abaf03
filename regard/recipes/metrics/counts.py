"""Precision, recall and F1 of each class from counts.

precision = 100 * hits / found        recall = 100 * hits / present
F1        = 200 * hits / (found + present)

A quotient whose denominator is 0 is 0. Source: manning2008, section 8.3.
"""

from collections import Counter
from collections.abc import Iterable, Sequence


def precision_recall_f1(
    hits: Iterable[str], found: Iterable[str], present: Iterable[str]
) -> dict[str, dict[str, float]]:
    """Return `count_scores` of the labels of correct predictions, predictions and references."""
    counts = [Counter(labels) for labels in (hits, found, present)]
    names = sorted(set().union(*counts))
    return count_scores(names, *([each[name] for name in names] for each in counts))


def count_scores(
    names: Sequence[str], hits: Sequence[int], found: Sequence[int], present: Sequence[int]
) -> dict[str, dict[str, float]]:
    """Return precision, recall and F1 of each class in percent, and its number of examples.

    hits, found, present: numbers of correct predictions, predictions and examples of each class.
    """
    scores = {}
    for name, hit, predicted, count in zip(names, hits, found, present, strict=True):
        scores[name] = {
            "precision": 100 * hit / max(1, predicted),
            "recall": 100 * hit / max(1, count),
            "f1": 200 * hit / max(1, predicted + count),
            "examples": count,
        }
    return scores
