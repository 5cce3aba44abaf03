"""Opinions: they are naive Bayes, a text left out is as if it had never been counted, files are checked."""

import itertools
import math

import numpy as np
import pytest

from regard.data.batches import Ragged
from regard.data.opinions import Opinions
from regard.errors import UserError

TEXTS = Ragged.of([[4, 5, 4], [4, 6], [5, 6, 1, 7], [8], [6, 5, 6, 4], [4, 5]])
CLASSES = [0, 1, 2, 2, 1, 0]


def held(row: list[int], pairs: bool) -> set[tuple[int, ...]]:
    """Known pieces, and pairs of neighbours, of a text."""
    found = {(piece,) for piece in row} | ({*itertools.pairwise(row)} if pairs else set())
    return {what for what in found if 1 not in what}


def naive_bayes(rows: list[list[int]], classes: list[int], text: list[int], pairs: bool) -> list[float]:
    """log p(text | c) by the formula, one factor after the other."""
    all_held = [held(row, pairs) for row in rows]
    known = set().union(*all_held)
    scores = []
    for c in range(3):
        mine = [found for found, other in zip(all_held, classes, strict=True) if other == c]
        total = sum(map(len, mine)) + len(known)
        scores.append(sum(math.log((sum(w in m for m in mine) + 1) / total) for w in held(text, pairs) & known))
    return scores


def opinions(rows: Ragged, classes: list[int], pairs: bool) -> Opinions:
    return Opinions.of(rows, classes, num_classes=3, pairs=pairs)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("text", [[4, 5, 6], [4, 4, 4], [8, 9, 1, 5], [5, 4, 5, 4]])
def test_sum_of_opinions_is_naive_bayes(text, pairs):
    wanted = np.array(naive_bayes([TEXTS[i].tolist() for i in range(6)], CLASSES, text, pairs))
    found = opinions(TEXTS, CLASSES, pairs).of_text(np.array(text, np.int32))
    assert found.shape == (len(text), 3)
    np.testing.assert_allclose(found.sum(0), wanted - wanted.mean(), atol=1e-6)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("out", range(6))
def test_text_that_is_left_out_is_as_if_never_counted(out, pairs):
    others = [i for i in range(6) if i != out]
    without = opinions(Ragged.of(TEXTS[i].tolist() for i in others), [CLASSES[i] for i in others], pairs)
    found = opinions(TEXTS, CLASSES, pairs).of_text(TEXTS[out], CLASSES[out])
    np.testing.assert_allclose(found, without.of_text(TEXTS[out]), atol=1e-6)
    assert not np.allclose(found, opinions(TEXTS, CLASSES, pairs).of_text(TEXTS[out]))


def test_opinion_stands_where_it_was_said_first():
    found = opinions(TEXTS, CLASSES, pairs=True)
    alone, said_twice = found.of_text(np.array([4], np.int32)), found.of_text(np.array([4, 1, 4], np.int32))
    np.testing.assert_allclose(said_twice, np.concatenate([alone, np.zeros((2, 3))]), atol=1e-6)


def test_saved_opinions_are_the_same_and_damaged_ones_are_named(tmp_path):
    path, whole = tmp_path / "opinions.npz", opinions(TEXTS, CLASSES, pairs=True)
    whole.save(path)
    again = Opinions.load(path, 3)
    np.testing.assert_array_equal(again.of_text(TEXTS[2], 2), whole.of_text(TEXTS[2], 2))
    with pytest.raises(UserError, match=r"opinions.npz: damaged, or of another version: .* 2 classes"):
        Opinions.load(path, 2)
    content = dict(np.load(path))
    for change in (
        {"version": np.int64(2)},
        {"counts": content["counts"].astype(float)},
        {"counts": content["counts"] - 9},
        {"numbers": content["numbers"][::-1]},
        {"pairs": np.array(["yes"], dtype=object)},
    ):
        np.savez(path, **(content | change))
        with pytest.raises(UserError, match=r"opinions.npz: damaged"):
            Opinions.load(path, 3)
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError, match=r"opinions.npz: damaged"):
        Opinions.load(path, 3)
    path.unlink()
    with pytest.raises(UserError, match=r"opinions.npz is missing"):
        Opinions.load(path, 3)


def test_texts_of_unknown_pieces_have_nothing_to_count():
    with pytest.raises(UserError, match="hold no known piece"):
        opinions(Ragged.of([[1, 1], [1]]), [0, 1], pairs=True)
