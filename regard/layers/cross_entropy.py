"""Output layer and cross-entropy in one: the scores of the vocabulary are never kept.

    z = W h + b        p = softmax(z)        q = (1 - e) onehot(target) + e / V          (e: label smoothing)
    loss = sum over tokens of  - sum_v q_v log p_v  =  (1 - e) (lse(z) - z_target) + e (lse(z) - mean(z))

The scores (tokens, vocab) are by far the largest tensor of a small model: here they exist for a few hundred tokens
at a time, while they are still in the cache. The gradient is formed in the same pass, from exp(z - max) as it is:

    dh = (exp(z - max) / s) W - q W      dW = exp(z - max)^T (h / s) - q^T h      s = sum_v exp(z_v - max)

so that p is never normalised element by element, and q W, q^T h need only row sums and one row a token.

Source: szegedy2016, section 7 (label smoothing).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["TokenLoss", "token_loss"]

_CHUNK_BYTES = 16 << 20
"""Scores held at a time: they should stay in the last-level cache, and be enough work for a matrix product."""


class TokenLoss(NamedTuple):
    """Sums over tokens, in nats."""

    total: Float[Tensor, ""]
    """With label smoothing: what is minimised."""
    nll: Float[Tensor, ""]
    """-log p(target): what is reported. No gradient."""


def token_loss(
    hidden: Float[Tensor, "tokens dim"],
    weight: Float[Tensor, "vocab dim"],
    bias: Float[Tensor, " vocab"] | None,
    target: Int[Tensor, " tokens"],
    *,
    smoothing: float = 0.0,
) -> TokenLoss:
    """Cross-entropy of softmax(hidden weight^T + bias) with `target`, summed over tokens.

    Gradients flow to hidden, weight and bias (not twice). Raises ValueError if smoothing is not in [0, 1).
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be at least 0 and below 1, but is {smoothing}")
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    return TokenLoss(*_ChunkedLoss.apply(hidden, weight, bias, target, smoothing))


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, target, smoothing):
        needs = any(ctx.needs_input_grad)
        gradients = _Gradients(hidden, weight, bias) if needs else None
        totals = torch.zeros(2, dtype=_wide(hidden.dtype), device=hidden.device)
        weight_mean = weight.mean(0, dtype=totals.dtype).to(weight.dtype)
        rows = max(64, _CHUNK_BYTES // (weight.shape[0] * totals.element_size()))
        for first in range(0, hidden.shape[0], rows):
            chunk = slice(first, first + rows)
            totals += _chunk(hidden, weight, bias, target, smoothing, weight_mean, chunk, gradients)
        if gradients is not None:
            saved = gradients.finish(target, smoothing, weight_mean)
            ctx.save_for_backward(*saved)
        total, nll = totals.unbind()
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx, of_total, of_nll):
        hidden, weight, bias = ctx.saved_tensors
        scaled = [None if g is None else g * of_total.to(g.dtype) for g in (hidden, weight, bias)]
        return *scaled, None, None


class _Gradients:
    """Gradients of the loss, grown chunk by chunk."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None):
        self.source, self.table = hidden, weight
        self.hidden = torch.empty_like(hidden)
        self.weight = torch.zeros_like(weight, dtype=_wide(weight.dtype))
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=_wide(bias.dtype))

    def add(self, chunk: slice, exps: Tensor, total: Tensor) -> None:
        """The part that comes from lse(z): exps are exp(z - max), `total` their sums (tokens, 1)."""
        exps = exps.to(self.table.dtype)
        inverse = total.reciprocal()
        torch.mm(exps, self.table, out=self.hidden[chunk])
        self.hidden[chunk].mul_(inverse)
        scaled = self.source[chunk] * inverse.to(self.source.dtype)
        if self.weight.dtype == exps.dtype:
            self.weight.addmm_(exps.t(), scaled)
        else:
            self.weight.add_(exps.t() @ scaled)
        if self.bias is not None:
            self.bias.add_((exps.t() @ inverse.to(exps.dtype)).squeeze(-1))

    def finish(self, target: Tensor, smoothing: float, weight_mean: Tensor) -> tuple:
        """Take away the part that comes from q: one row a token, and a constant."""
        sure = 1 - smoothing
        self.hidden.sub_(self.table[target], alpha=sure)
        self.weight.index_add_(0, target, self.source.to(self.weight.dtype), alpha=-sure)
        if smoothing:
            self.hidden.sub_(weight_mean, alpha=smoothing)
            share = smoothing / self.weight.shape[0]
            self.weight.sub_(self.source.sum(0, dtype=self.weight.dtype), alpha=share)
        if self.bias is not None:
            counts = torch.bincount(target, minlength=self.bias.shape[0]).to(self.bias.dtype)
            self.bias.sub_(counts, alpha=sure).sub_(smoothing * target.shape[0] / self.bias.shape[0])
        return self.hidden, self.weight.to(self.table.dtype), self.bias


def _chunk(hidden, weight, bias, target, smoothing, weight_mean, chunk, gradients) -> Tensor:
    """Loss and nll of some tokens; adds to the gradients if there are any."""
    states = hidden[chunk]
    scores = (states @ weight.t()).to(_wide(hidden.dtype))  # (tokens, vocab)
    if bias is not None:
        scores += bias
    of_target = scores.gather(1, target[chunk, None])
    highest = scores.amax(1, keepdim=True)
    mean = scores.mean(1, keepdim=True) if bias is not None else (states @ weight_mean).to(scores.dtype)[:, None]
    exps = scores.sub_(highest).exp_()
    total = exps.sum(1, keepdim=True)
    log_total = highest + total.log()
    if gradients is not None:
        gradients.add(chunk, exps, total)
    nll = (log_total - of_target).sum()
    smooth = (log_total - mean).sum()
    return torch.stack(((1 - smoothing) * nll + smoothing * smooth, nll))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
