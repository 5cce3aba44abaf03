"""The softmax of many short rows equals that of torch, with its gradients, compiled or not."""

import numpy as np
import pytest
import torch
from torch.func import vmap

from regard.native import rows as native_rows
from regard.native import table
from regard.ops.softmax import softmax


def reference_softmax(scores, gradient):
    wide = scores.detach().double().requires_grad_()
    out = wide.softmax(-1)
    return out, torch.autograd.grad(out, wide, gradient.double())[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [1, 2, 7, 15, 16, 31, 33, 257, 5000])
def test_softmax_and_gradient_match_float64(monkeypatch, dtype, columns):
    monkeypatch.setattr(table, "_VECTOR", 1 << 20)
    monkeypatch.setattr("regard.ops.softmax.MIN_COMPILED", 0)
    scores = (torch.randn(3, 41, columns) * 8).to(dtype).requires_grad_()
    gradient = torch.randn(3, 41, columns).to(dtype)
    out = softmax(scores)
    assert out.grad_fn is not None
    assert "Softmax" in out.grad_fn.name()
    expected, grad_scores = reference_softmax(scores, gradient)
    bound = 2e-6 if dtype == torch.float32 else 2**-7
    assert out.dtype == dtype
    assert (out.double() - expected).abs().max() <= bound
    results = torch.autograd.grad(out, scores, gradient)[0]
    assert (results.double() - grad_scores).abs().max() <= 4 * bound


def test_masked_keys_have_weight_zero_and_a_fully_masked_row_is_nan():
    scores = torch.randn(5, 9)
    scores[1, 3:], scores[2, :] = float("-inf"), float("-inf")
    scores[3, 4] = float("nan")
    out = native_rows.softmax(scores)
    assert (out[1, 3:] == 0).all()
    assert out.isnan().any(-1).tolist() == [False, False, True, True, False]
    assert (out[[0, 1, 4]].sum(-1) - 1).abs().max() < 1e-6


def test_softmax_does_not_depend_on_threads():
    scores, before = torch.randn(6000, 15), torch.get_num_threads()
    try:
        results = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(native_rows.softmax(scores))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_gradients_of_gradients_and_mapped_functions(monkeypatch):
    monkeypatch.setattr("regard.ops.softmax.MIN_COMPILED", 0)
    scores = torch.randn(4, 7, requires_grad=True)

    def second(function):
        (first,) = torch.autograd.grad(function(scores).pow(3).sum(), scores, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), scores)[0]

    torch.testing.assert_close(
        second(softmax), second(lambda s: s.softmax(-1)), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(vmap(softmax)(scores), scores.softmax(-1))


def test_long_or_few_rows_use_torch():
    for shape in ((4, 7), (4096, 16)):
        scores = torch.randn(shape, requires_grad=True)
        assert torch.equal(softmax(scores), scores.softmax(-1))


def test_bfloat16_is_widened_and_rounded_as_in_torch():
    halves = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.bfloat16)
    wide = torch.empty(len(halves), dtype=torch.float32)
    native_rows.row_reader(np.uint16)(wide.numpy(), halves.view(torch.uint16).numpy())
    assert torch.equal(wide.isnan(), halves.isnan())
    assert torch.equal(wide.nan_to_num(0), halves.float().nan_to_num(0))
    steps = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    between = (wide.view(torch.int32)[:, None] + steps).flatten()
    between = between.to(torch.int32).view(torch.float32)
    results = torch.empty(len(between), dtype=torch.uint16)
    native_rows.row_writer(np.uint16)(results.numpy(), between.numpy())
    assert torch.equal(results.view(torch.bfloat16).isnan(), between.isnan())
    assert torch.equal(
        results.view(torch.bfloat16).nan_to_num(0), between.to(torch.bfloat16).nan_to_num(0)
    )
