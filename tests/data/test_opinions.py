"""Opinions: they are naive Bayes, a text left out is as if it had never been counted, files are checked."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from regard.data.config import OpinionKinds
from regard.data.opinions import Opinions
from regard.errors import UserError

SAID = ("a fine film a", "a filmmaker", "fine filmmakers try this", "so", "this a this fine", "a fine")
TEXTS = [text.split() for text in SAID]
CLASSES = [0, 1, 2, 2, 1, 0]
HELD: dict[str, list[Callable[[list[str]], set[str]]]] = {
    "words": [set],
    "pairs": [set, lambda row: {f"{a} {b}" for a, b in pairwise(row)}],
    "beginnings": [
        set,
        lambda row: {word[:5] for word in row if len(word) > 5},
        lambda row: {f"{a[:5]} {b[:5]}" for a, b in pairwise(row)},
    ],
}
"""What a text holds, kind after kind."""


def naive_bayes(rows: list[list[str]], text: list[str], held: Callable[[list[str]], set[str]]) -> np.ndarray:
    """log p(text | c) by the formula, one factor after the other, and its mean taken off."""
    all_held = [held(row) for row in rows]
    known = set().union(*all_held)
    scores = []
    for c in range(3):
        mine = [found for found, other in zip(all_held, CLASSES, strict=True) if other == c]
        total = sum(map(len, mine)) + len(known)
        scores.append(sum(math.log((sum(w in m for m in mine) + 1) / total) for w in held(text) & known))
    return np.array(scores) - np.mean(scores)


def opinions(rows: list[list[str]], classes: list[int], kinds: OpinionKinds) -> Opinions:
    return Opinions.of(rows, classes, num_classes=3, kinds=kinds)


@pytest.mark.parametrize("kinds", ["words", "pairs", "beginnings"])
@pytest.mark.parametrize("text", ["a fine filmmaker", "a a a", "so new this is fine", "fine films a fine films"])
def test_sum_of_opinions_is_naive_bayes(text, kinds):
    found = opinions(TEXTS, CLASSES, kinds).of_text(text.split()).sum(0)
    wanted = [naive_bayes(TEXTS, text.split(), held) for held in HELD[kinds]]
    np.testing.assert_allclose(found, np.stack(wanted), atol=1e-6)


@pytest.mark.parametrize("kinds", ["words", "pairs", "beginnings"])
@pytest.mark.parametrize("out", range(6))
def test_text_that_is_left_out_is_as_if_never_counted(out, kinds):
    others = [i for i in range(6) if i != out]
    without = opinions([TEXTS[i] for i in others], [CLASSES[i] for i in others], kinds)
    whole = opinions(TEXTS, CLASSES, kinds)
    found = whole.of_text(TEXTS[out], CLASSES[out])
    np.testing.assert_allclose(found, without.of_text(TEXTS[out]), atol=1e-6)
    assert not np.allclose(found, whole.of_text(TEXTS[out]))


def test_opinion_stands_where_it_was_said_first():
    found = opinions(TEXTS, CLASSES, "words")
    alone, said_twice = found.of_text(["fine"]), found.of_text(["fine", "", "fine"])
    np.testing.assert_allclose(said_twice, np.concatenate([alone, np.zeros((2, 1, 3))]), atol=1e-6)


def test_saved_opinions_are_the_same_and_damaged_ones_are_named(tmp_path):
    path, whole = tmp_path / "opinions.npz", opinions(TEXTS, CLASSES, "pairs")
    whole.save(path)
    again = Opinions.load(path, "pairs", 3)
    np.testing.assert_array_equal(again.of_text(TEXTS[2], 2), whole.of_text(TEXTS[2], 2))
    with pytest.raises(UserError, match=r"opinions.npz: damaged, or of another version: .* 2 classes"):
        Opinions.load(path, "pairs", 2)
    with pytest.raises(UserError, match=r"opinions.npz: damaged"):
        Opinions.load(path, "words", 3)
    content = dict(np.load(path))
    for change in (
        {"version": np.int64(2)},
        {"counts": content["counts"].astype(float)},
        {"counts": content["counts"] - 9},
        {"numbers": content["numbers"][::-1]},
        {"kind": np.array(["yes"], dtype=object)},
    ):
        np.savez(path, **(content | change))
        with pytest.raises(UserError, match=r"opinions.npz: damaged"):
            Opinions.load(path, "pairs", 3)
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError, match=r"opinions.npz: damaged"):
        Opinions.load(path, "pairs", 3)
    path.unlink()
    with pytest.raises(UserError, match=r"opinions.npz is missing"):
        Opinions.load(path, "pairs", 3)
