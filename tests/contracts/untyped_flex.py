"""FlexAttention: supported cells of the grid, and refused reads. Run by test_transforms.py."""

import pytest
import torch

from regard.attention.attend import attend
from regard.attention.masks import causal
from tests.contracts.test_grid import check_read
from tests.helpers import close

# Compiled for seconds, in each dtype: every part is tested once, not every combination.
CELLS = [
    ("scaled", "learned", "ranges", "given"),
    ("dot", "soft", "holes", "none"),
    ("additive", "soft", "none", "none"),
]


@pytest.mark.parametrize(("score", "choice", "mask", "bias"), CELLS)
def test_flex_is_correct_or_refuses(score: str, choice: str, mask: str, bias: str) -> None:
    assert check_read(score, choice, "flex", [(mask, bias)]) == (
        0 if score == "additive" else 3
    )  # float64 is refused


def test_flex_supports_grouped_heads() -> None:
    query = torch.randn(2, 6, 5, 11)
    keys = torch.randn(2, 3, 7, 11)
    values = torch.randn(2, 3, 7, 13)
    out = attend(query, (keys, values), mask=causal(), kernel="flex")
    close(out, attend(query, (keys, values), mask=causal(), kernel="reference"))


def test_flex_refuses_gradients_on_a_cpu() -> None:
    query = torch.randn(2, 5, 11, requires_grad=True)
    memory = (torch.randn(2, 7, 11), torch.randn(2, 7, 13))
    with pytest.raises(ValueError, match=r"no gradient on a CPU. Use .*reference"):
        attend(query, memory, kernel="flex")
