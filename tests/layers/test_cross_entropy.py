"""The chunked loss equals torch's, value and gradient, whatever the chunks."""

import pytest
import torch
from torch.nn import functional

from regard.layers import cross_entropy
from regard.layers.cross_entropy import token_loss
from tests.helpers import close


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 30])
def test_loss_equals_torchs(monkeypatch, smoothing, with_bias, chunk_bytes):
    monkeypatch.setattr(cross_entropy, "_CHUNK_BYTES", chunk_bytes)
    leaves = [torch.randn(157, 7), torch.randn(11, 7) * 5, torch.randn(11)][: 3 if with_bias else 2]
    leaves = [leaf.double().requires_grad_() for leaf in leaves]
    hidden, weight, bias = (*leaves, None)[:3]
    target = torch.randint(11, (157,))
    loss = token_loss(hidden, weight, bias, target, smoothing=smoothing)
    logits = functional.linear(hidden, weight, bias)
    expected = functional.cross_entropy(logits, target, label_smoothing=smoothing, reduction="sum")
    close(loss.total, expected)
    close(loss.nll, functional.cross_entropy(logits, target, reduction="sum"))
    got = torch.autograd.grad(3 * loss.total, leaves)
    for ours, theirs in zip(got, torch.autograd.grad(3 * expected, leaves), strict=True):
        close(ours, theirs)


def test_large_scores_do_not_overflow():
    hidden = torch.full((3, 2), 1e3, requires_grad=True)
    weight = torch.tensor([[1.0, 1.0], [-1.0, 2.0]])
    loss = token_loss(hidden, weight, None, torch.tensor([0, 1, 1]))
    assert loss.total.isfinite()
    assert torch.autograd.grad(loss.total, hidden)[0].isfinite().all()


def test_autocast_stays_near_the_exact_loss():
    hidden, weight = torch.randn(57, 32, requires_grad=True), torch.randn(101, 32) / 6
    target = torch.randint(101, (57,))
    exact = token_loss(hidden, weight, None, target, smoothing=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        rough = token_loss(hidden, weight, None, target, smoothing=0.1)
    assert abs(rough.total / exact.total - 1) < 0.01
    a, b = (torch.autograd.grad(x.total, hidden)[0] for x in (rough, exact))
    assert (a - b).abs().max() < 0.03 * b.abs().max()


def test_loss_of_no_tokens_is_zero():
    hidden = torch.zeros(0, 3, requires_grad=True)
    loss = token_loss(hidden, torch.randn(5, 3), None, torch.zeros(0, dtype=torch.int64))
    assert loss.total == 0
    assert torch.autograd.grad(loss.total, hidden)[0].shape == (0, 3)


def test_loss_refuses_a_smoothing_of_one():
    with pytest.raises(ValueError, match=r"smoothing must be at least 0 and below 1, but is 1\.0"):
        token_loss(torch.zeros(1, 2), torch.zeros(3, 2), None, torch.tensor([0]), smoothing=1.0)
