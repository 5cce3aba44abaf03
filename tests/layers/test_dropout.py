"""Dropout from few bits: right share, right mean, fixed by the seed."""

import pytest
import torch

from regard.layers.dropout import Dropout


def test_dropout_keeps_share_and_mean():
    x = torch.ones(300, 1001)
    y = Dropout(0.3)(x)
    assert abs((y == 0).float().mean() - 0.3) < 0.005
    assert abs(y.mean() - 1) < 0.01
    assert y[y != 0].unique().numel() == 1


def test_dropout_drops_elements_independently():
    y = Dropout(0.5)(torch.ones(4, 100_000)) != 0
    agreement = (y[:, 1:] == y[:, :-1]).float().mean()
    assert abs(agreement - 0.5) < 0.01
    for stride in (2, 3, 4, 8):
        assert abs((y[:, stride:] == y[:, :-stride]).float().mean() - 0.5) < 0.01


def test_dropout_gradient_is_the_same_mask():
    x = torch.randn(7, 13, dtype=torch.float64, requires_grad=True)
    y = Dropout(0.4)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient * x, y)


def test_dropout_is_fixed_by_the_seed():
    torch.manual_seed(5)
    first = Dropout(0.5)(torch.ones(999))
    torch.manual_seed(5)
    assert torch.equal(Dropout(0.5)(torch.ones(999)), first)
    assert not torch.equal(Dropout(0.5)(torch.ones(999)), first)


def test_dropout_is_the_identity_in_evaluation():
    x = torch.randn(3, 5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_dropout_refuses_what_is_no_share(p):
    with pytest.raises(ValueError, match="dropout p must be at least 0 and below 1"):
        Dropout(p)
