"""Reduction of the weights of a page to a budget."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.look.page import page, reduce
from regard.look.page.reduce import SIDE, PageCut, block_maxima, top_k

SIZES = {"a": (4, 100, 100), "b": (2, 300, 300)}
TOTAL = 4 * 100 * 100 + 2 * 300 * 300


@pytest.mark.parametrize(
    ("budget", "dtype", "cut"),
    [
        (TOTAL * 4, torch.float32, set()),
        (TOTAL * 4 - 1, torch.float16, set()),
        (TOTAL * 2 - 1, torch.float32, {"b"}),
    ],
)
def test_reduction_depends_on_the_budget(budget, dtype, cut, monkeypatch):
    monkeypatch.setattr(reduce, "BUDGET", budget)
    page_cut = PageCut.of(SIZES)
    assert (page_cut.dtype, page_cut.cut) == (dtype, cut)
    assert bool(page._Numbers(page_cut).notes()) == (dtype is not torch.float32 or bool(cut))


def test_reduction_uses_the_whole_budget(monkeypatch):
    budget = TOTAL * 2 - 1
    monkeypatch.setattr(reduce, "BUDGET", budget)
    count = PageCut.of(SIZES).count

    def size(count: int) -> int:
        return 4 * 4 * 100 * 100 + 2 * 2 * SIDE * SIDE + 2 * 300 * count * 6

    assert size(count) <= budget < size(count + 1) or (count == 128 and size(count) <= budget)


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 2**32))
def test_each_block_has_its_number_of_largest_magnitude(rows, columns, seed):
    numbers = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)
    maxima = block_maxima(numbers)
    assert maxima.shape == (min(rows, SIDE), min(columns, SIDE))
    r, c = (np.random.default_rng(seed).integers(size) for size in maxima.shape)
    down = [i * rows // maxima.shape[0] for i in (r, r + 1)]
    across = [i * columns // maxima.shape[1] for i in (c, c + 1)]
    block = numbers[down[0] : down[1], across[0] : across[1]]
    assert maxima[r, c] == np.float16(block.flat[np.abs(block).argmax()])


def test_zeros_have_no_key():
    values, keys = top_k(np.array([[0, 0.5, 0, -0.75], [0, 0, 0, 0]], np.float32), 3)
    assert values.tolist() == [[-0.75, 0.5, 0], [0, 0, 0]]
    assert keys.tolist() == [[3, 1, 65535], [65535] * 3]


def test_many_keys_need_longer_numbers():
    assert top_k(np.ones((1, 65_535), np.float32), 1)[1].dtype == np.uint16
    assert top_k(np.ones((1, 65_536), np.float32), 1)[1].dtype == np.uint32
