"""Input of alignment figures: names of heads, matching sizes, finite weights."""

import pytest
import torch

from regard.look.figures.alignment import Alignment
from tests.helpers import close


def test_alignment_names_its_heads_and_averages_them():
    weights = torch.rand(3, 2, 5)
    alignment = Alignment(source=list("abcde"), target=["x", "y"], weights=weights)
    assert list(alignment.head_names) == ["head 1", "head 2", "head 3"]
    close(alignment.mean(), weights.sum(0) / 3)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 5, 2), r"= \(1, 2, 5\), got \(1, 5, 2\)"),
        ((0, 2, 5), r"at least one head, target and source token"),
    ],
    ids=["swapped", "no head"],
)
def test_alignment_of_other_sizes_is_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        Alignment(source=list("abcde"), target=["x", "y"], weights=torch.rand(shape))


def test_alignment_with_nan_is_refused():
    weights = torch.rand(1, 2, 3)
    weights[0, 1, 1] = float("nan")
    with pytest.raises(ValueError, match=r"weights must be finite"):
        Alignment(source=list("abc"), target=["x", "y"], weights=weights)
