"""Add & norm in both orders, by hand."""

import pytest
import torch

from regard.layers.residual import Residual
from tests.helpers import close


def normalised(items: torch.Tensor) -> torch.Tensor:
    return (items - items.mean(-1, keepdim=True)) / torch.sqrt(items.var(-1, correction=0, keepdim=True) + 1e-5)


def test_post_normalises_the_sum_over_the_last_axis():
    items = torch.randn(2, 3, 7).double()
    close(Residual(7).double()(items, torch.sin), normalised(items + items.sin()))


def test_pre_normalises_what_the_part_sees():
    items = torch.randn(2, 3, 7).double()
    close(Residual(7, order="pre").double()(items, torch.sin), items + normalised(items).sin())


def test_post_output_has_mean_zero_and_variance_one():
    out = Residual(64)(torch.randn(5, 64) * 3 + 2, lambda x: x)
    close(out.mean(-1), torch.zeros(5))
    assert (out.var(-1, correction=0) - 1).abs().max() < 1e-4


@pytest.mark.parametrize("order", ["pre", "post"])
def test_dropout_falls_on_the_part_alone(order):
    residual = Residual(7, order=order, dropout=0.999)
    items = torch.randn(2, 3, 7)
    alone = Residual(7, order=order)(items, torch.zeros_like)
    assert torch.equal(residual(items, torch.zeros_like), alone)
    assert (residual(items, torch.ones_like) == alone).float().mean() > 0.9


def test_residual_refuses_an_unknown_order():
    with pytest.raises(ValueError, match="order must be post or pre, but is 'both'"):
        Residual(7, order="both")
