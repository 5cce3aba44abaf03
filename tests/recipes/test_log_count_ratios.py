"""Log-count ratios: their sum is naive Bayes, leave-one-out is exact, and files are checked."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from regard.data.config import FeatureKinds
from regard.errors import UserError
from regard.recipes.reviews.log_count_ratios import LogCountRatios

SENTENCES = (
    "a fine film a",
    "a filmmaker",
    "fine filmmakers try this movies",
    "so",
    "this a this fine",
    "a fine",
)
TEXTS = [text.split() for text in SENTENCES]
CLASSES = [0, 1, 2, 2, 1, 0]
FEATURES: dict[str, list[Callable[[list[str]], set[str]]]] = {
    "words": [set],
    "bigrams": [set, lambda row: {f"{a} {b}" for a, b in pairwise(row)}],
    "prefixes": [
        set,
        lambda row: {word[:5] for word in row if len(word) > 5},
        lambda row: {f"{a[:5]} {b[:5]}" for a, b in pairwise(row)},
    ],
}
"""Features of a text, for each kind."""


def naive_bayes(
    rows: list[list[str]], text: list[str], features_of: Callable[[list[str]], set[str]]
) -> np.ndarray:
    """Return log p(text | c) by the formula, factor by factor, minus its mean over the classes."""
    all_features = [features_of(row) for row in rows]
    known = set().union(*all_features)
    scores = np.zeros(3)
    for c in range(3):
        in_class = [all_features[i] for i in range(len(rows)) if CLASSES[i] == c]
        total = sum(map(len, in_class)) + len(known)
        for w in features_of(text) & known:
            scores[c] += math.log((sum(w in features for features in in_class) + 1) / total)
    return scores - scores.mean()


def count(rows: list[list[str]], classes: list[int], kinds: FeatureKinds) -> LogCountRatios:
    return LogCountRatios.from_texts(rows, classes, num_classes=3, kinds=kinds)


@pytest.mark.parametrize("kinds", FEATURES)
@pytest.mark.parametrize(
    "text",
    ["a fine filmmaker", "a a a", "so new this is fine", "fine films a fine films", "movie movies"],
)
def test_sum_of_ratios_is_naive_bayes(text, kinds):
    ratios = count(TEXTS, CLASSES, kinds).compute(text.split()).sum(0)
    expected = [naive_bayes(TEXTS, text.split(), features_of) for features_of in FEATURES[kinds]]
    np.testing.assert_allclose(ratios, np.stack(expected), atol=1e-6)


@pytest.mark.parametrize("kinds", FEATURES)
@pytest.mark.parametrize("out", range(6))
def test_leave_one_out_equals_counts_without_the_text(out, kinds):
    others = [i for i in range(6) if i != out]
    without = count([TEXTS[i] for i in others], [CLASSES[i] for i in others], kinds)
    all_counts = count(TEXTS, CLASSES, kinds)
    ratios = all_counts.compute(TEXTS[out], CLASSES[out])
    np.testing.assert_allclose(ratios, without.compute(TEXTS[out]), atol=1e-6)
    assert not np.allclose(ratios, all_counts.compute(TEXTS[out]))


def test_repeated_feature_counts_at_its_first_occurrence():
    ratios = count(TEXTS, CLASSES, "words")
    alone, repeated = ratios.compute(["fine"]), ratios.compute(["fine", "", "fine"])
    np.testing.assert_allclose(repeated, np.concatenate([alone, np.zeros((2, 1, 3))]), atol=1e-6)


def test_saved_counts_are_the_same_and_damaged_ones_are_refused(tmp_path):
    path, all_counts = tmp_path / "naive_bayes.npz", count(TEXTS, CLASSES, "bigrams")
    all_counts.save(path)
    again = LogCountRatios.load(path, "bigrams")
    np.testing.assert_array_equal(again.compute(TEXTS[2], 2), all_counts.compute(TEXTS[2], 2))
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError, match=r"naive_bayes.npz"):
        LogCountRatios.load(path, "bigrams")
