"""FlexAttention: supported cells of the grid, and refused reads. Run by test_transforms.py."""

import math

import pytest
import torch

from regard.attention.attend import attend
from regard.attention.choices import Soft
from regard.attention.masks import causal, dense
from regard.attention.scores import Dot
from tests.contracts.test_grid import HALF, HOLES, ROUNDING, check_read
from tests.helpers import close

# Compiled for half a minute in each dtype: every part and dtype is tested once, not every
# combination.
CELLS = [
    ("scaled", "learned", "ranges", "given", torch.float32),
    ("additive", "soft", "none", "none", torch.float32),
    pytest.param("dot", "soft", "holes", "none", torch.float16, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("score", "choice", "mask", "bias", "dtype"), CELLS)
def test_flex_is_correct_or_refuses(
    score: str, choice: str, mask: str, bias: str, dtype: torch.dtype
) -> None:
    rules = {torch.float64: [(mask, bias)], dtype: [(mask, bias)]}  # float64 is refused
    computed = 0 if score == "additive" else 1
    assert check_read(score, choice, "flex", rules) == computed


def test_flex_supports_grouped_heads_and_half_precision() -> None:
    query, keys, values = (
        torch.randn(3, heads, size, dim).div(2).bfloat16()
        for heads, size, dim in ((6, 5, 11), (3, 7, 11), (3, 7, 13))
    )
    parts = {"score": Dot(), "mask": dense(HOLES) & causal()}
    out = attend(query, (keys, values), kernel="flex", **parts)
    wide = query.double(), (keys.double(), values.double())
    exact = attend(*wide, kernel="reference", **parts)
    assert out.dtype == torch.bfloat16
    assert (out.double() - exact).norm() <= HALF * ROUNDING[torch.bfloat16] * exact.norm()


SIZES = {"query": (2, 5, 11), "keys": (2, 7, 11), "values": (2, 7, 13), "bias": (2, 5, 7)}
"""Sizes of two tests, whose reads are compiled once."""


@pytest.mark.parametrize("learned", ["query", "keys", "values", "beta", "bias"])
def test_flex_refuses_gradients_on_a_cpu_and_reads_without(learned: str) -> None:
    parts = {name: torch.randn(size) for name, size in SIZES.items()} | {"beta": torch.tensor(2.0)}
    parts[learned].requires_grad_()
    query, memory, bias = parts["query"], (parts["keys"], parts["values"]), parts["bias"]
    options = {"choice": Soft(parts["beta"]), "bias": bias}
    with pytest.raises(ValueError, match=r"no gradient on a CPU. Use .*reference"):
        attend(query, memory, kernel="flex", **options)
    with torch.no_grad():
        out = attend(query, memory, kernel="flex", **options)
        close(out, attend(query, memory, kernel="reference", **options))


def test_beta_of_zero_weighs_all_allowed_keys_alike() -> None:
    query, keys, values, bias = (torch.randn(size) for size in SIZES.values())
    hidden = torch.full_like(bias, -math.inf).triu(2)
    options = {"bias": hidden, "choice": Soft(torch.tensor(0.0))}
    out = attend(query, (keys, values), kernel="flex", **options)
    weights = (hidden == 0) / (hidden == 0).sum(-1, keepdim=True)
    close(out, weights @ values)
