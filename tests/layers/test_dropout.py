"""Dropout: share, mean, and reproducibility by the seed."""

import pytest
import torch

from regard.layers.dropout import Dropout
from regard.native.dropout.autograd import drop


def test_dropout_drops_elements_independently():
    y = Dropout(0.5)(torch.ones(4, 100_000)) != 0
    share_equal = (y[:, 1:] == y[:, :-1]).float().mean()
    assert abs(share_equal - 0.5) < 0.01
    for stride in (2, 3, 4, 8):
        assert abs((y[:, stride:] == y[:, :-stride]).float().mean() - 0.5) < 0.01


def test_dropout_is_fixed_by_the_seed():
    torch.manual_seed(5)
    first = Dropout(0.5)(torch.ones(999))
    torch.manual_seed(5)
    assert torch.equal(Dropout(0.5)(torch.ones(999)), first)
    assert not torch.equal(Dropout(0.5)(torch.ones(999)), first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dropout_has_its_share_and_scale_in_every_type(dtype):
    y = Dropout(0.25)(torch.full((300, 1001), 3.0, dtype=dtype))
    assert y.dtype == dtype
    assert abs((y == 0).double().mean() - 0.25) < 0.005
    assert set(y.unique().tolist()) == {0.0, 4.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(7, 13), (3, 5, 11), (1,), (5, 1), (2, 70_001)])
def test_dropout_gradient_is_the_same_mask(dtype, shape):
    x = torch.ones(shape, dtype=dtype, requires_grad=True)
    y = Dropout(0.5)(x)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert torch.equal(gradient, y)


def test_dropout_of_a_transposed_input_depends_on_index_not_memory_order():
    x = torch.randn(5, 9)
    assert torch.equal(drop(x.t(), 3, 30_000), drop(x.t().contiguous(), 3, 30_000))


def test_dropout_does_not_depend_on_threads():
    x, before = torch.ones(600, 301), torch.get_num_threads()
    try:
        masks = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            masks.append(drop(x, 7, 20_000))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[0], masks[2])


def test_dropout_of_other_seeds_is_independent():
    masks = [
        drop(torch.ones(400, 500), seed, 32_768) != 0 for seed in (1, 2, 3, 1 << 62, (1 << 62) + 1)
    ]
    for number, mask in enumerate(masks):
        for other in masks[:number]:
            assert abs((mask == other).float().mean() - 0.5) < 0.01


def test_dropout_rows_and_columns_each_have_the_share():
    y = drop(torch.ones(2000, 1000), 11, 6_554) != 0
    for axis in (0, 1):
        assert (y.float().mean(axis) - 0.9).abs().max() < 0.06  # more than six standard errors


def test_gradients_of_gradients_go_through_dropout():
    x = torch.randn(7, 13, requires_grad=True)
    y = drop(x, 5, 20_000)
    (first,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    scale = 65536 / (65536 - 20_000)
    assert torch.allclose(second, 6 * y * scale**2, rtol=1e-5)


def test_dropout_is_the_identity_in_evaluation():
    x = torch.randn(3, 5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_dropout_rejects_invalid_probabilities(p):
    with pytest.raises(ValueError, match="dropout p must be at least 0 and below 1"):
        Dropout(p)
