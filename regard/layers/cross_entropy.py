"""Output layer and cross-entropy in one: the scores of the vocabulary are never kept.

    z = W h + b        p = softmax(z)        q = (1 - e) onehot(target) + e / V          (e: label smoothing)
    loss = sum over tokens of  - sum_v q_v log p_v  =  (1 - e) (lse(z) - z_target) + e (lse(z) - mean(z))

The scores (tokens, vocab) are by far the largest tensor of a small model: here they exist for a few hundred tokens
at a time, while they are still in the cache. The gradient is formed in the same pass, from exp(z - max) as it is:

    dh = (exp(z - max) / s) W - q W      dW = exp(z - max)^T (h / s) - q^T h      s = sum_v exp(z_v - max)

so that p is never normalized element by element, and q W, q^T h need only row sums and one row a token.

Source: szegedy2016, section 7 (label smoothing).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.attention.kernels.maps import linear, takes_fast_products
from regard.attention.kernels.rows import is_compiled_for

_CHUNK_BYTES = 16 << 20
"""Scores held at a time: they should stay in the last-level cache, and be enough work for a matrix product."""


class TokenLoss(NamedTuple):
    """Sums over tokens, in nats."""

    total: Float[Tensor, ""]
    """With label smoothing: what is minimized."""
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
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    return TokenLoss(*_ChunkedLoss.apply(hidden, weight, bias, _Goal(target, smoothing, dtype)))


class _Goal(NamedTuple):
    """What is wanted, and the dtype that matrix products are computed in."""

    target: Tensor
    smoothing: float
    dtype: torch.dtype


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, bias: Tensor | None, goal: _Goal) -> tuple[Tensor, Tensor]:
        once_through = _Pass(hidden, weight, bias, goal, needs_gradients=any(ctx.needs_input_grad))
        totals = once_through.run()
        if once_through.gradients is not None:
            of_hidden, of_weight, of_bias = once_through.gradients.finish(goal, once_through.mean_row)
            ctx.save_for_backward(of_hidden.to(hidden.dtype), of_weight.to(weight.dtype), of_bias)
        total, nll = totals.unbind()
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx, of_total: Tensor, of_nll: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if g is None else g * of_total.to(g.dtype) for g in ctx.saved_tensors), None


class _Pass:
    """One pass over the tokens, some at a time: their losses, and the gradients on the way."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, goal: _Goal, *, needs_gradients: bool):
        self.hidden, self.table, self.bias, self.goal = hidden.to(goal.dtype), weight.to(goal.dtype), bias, goal
        self.wide = torch.float32 if goal.dtype in (torch.float16, torch.bfloat16) else goal.dtype
        self.mean_row = weight.mean(0)
        self.gradients = _Gradients(self.hidden, self.table, bias, wide=self.wide) if needs_gradients else None

    def run(self) -> Tensor:
        """[total, nll] of all tokens."""
        totals = torch.zeros(2, dtype=self.wide, device=self.hidden.device)
        rows = max(64, _CHUNK_BYTES // (self.table.shape[0] * self.table.element_size()))
        for first in range(0, self.hidden.shape[0], rows):
            totals += self.chunk(slice(first, first + rows))
        return totals

    def chunk(self, chunk: slice) -> Tensor:
        """[total, nll] of some tokens; adds to the gradients."""
        states, smoothing = self.hidden[chunk], self.goal.smoothing
        scores = linear(states, self.table)  # (tokens, vocab)
        in_place = self.bias is None and is_compiled_for(scores)
        scores = scores if in_place else scores.to(self.wide)
        mean = (states.to(self.mean_row.dtype) @ self.mean_row)[:, None]
        if self.bias is not None:
            scores += self.bias
            mean = mean + self.bias.mean()
        of_target = scores.gather(1, self.goal.target[chunk, None]).to(self.wide)
        if in_place:
            highest, total = _exponentials(scores)
        else:
            highest = scores.amax(1, keepdim=True)
            total = scores.sub_(highest).exp_().sum(1, keepdim=True)
        log_total = highest + total.log()
        if self.gradients is not None:
            self.gradients.add(chunk, scores.to(self.goal.dtype), total)
        nll = (log_total - of_target).sum()
        smooth = (log_total - mean).sum()
        return torch.stack(((1 - smoothing) * nll + smoothing * smooth, nll))


def _exponentials(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each row, and the sum of the exponentials that take the scores' place."""
    from regard.layers import cross_entropy_cpu  # noqa: PLC0415  # brings numba along, on first use

    return cross_entropy_cpu.exponentials(scores)


def _accumulate(total: Tensor, part: Tensor) -> None:
    if is_compiled_for(total, part):
        from regard.layers import cross_entropy_cpu  # noqa: PLC0415

        cross_entropy_cpu.accumulate(total, part.contiguous())
    else:
        total.add_(part)


class _Gradients:
    """Gradients of the loss, grown chunk by chunk."""

    def __init__(self, hidden: Tensor, table: Tensor, bias: Tensor | None, *, wide: torch.dtype):
        self.source, self.table = hidden, table
        self.hidden = torch.empty_like(hidden)
        self.is_turned = takes_fast_products(hidden, table)
        self.weight = torch.zeros_like(table.t() if self.is_turned else table, dtype=wide)
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=wide)

    def add(self, chunk: slice, exps: Tensor, total: Tensor) -> None:
        """The part that comes from lse(z): exps are exp(z - max), `total` their sums (tokens, 1)."""
        inverse = total.reciprocal()
        if self.is_turned:
            torch.mul(linear(exps, self.table.t()), inverse, out=self.hidden[chunk])
        else:
            torch.mm(exps, self.table, out=self.hidden[chunk]).mul_(inverse)
        scaled = self.source[chunk] * inverse.to(self.source.dtype)
        if self.is_turned:  # the smaller of the two is what a product has to turn over
            self.weight.add_(linear(scaled.t(), exps.t()))
        elif self.weight.dtype == exps.dtype:
            self.weight.addmm_(exps.t(), scaled)
        else:
            _accumulate(self.weight, exps.t() @ scaled)
        if self.bias is not None:
            self.bias.add_((exps.t() @ inverse.to(exps.dtype)).squeeze(-1))

    def finish(self, goal: _Goal, mean_row: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Take away the part that comes from q: one row a token, and a constant."""
        target, smoothing, sure = goal.target, goal.smoothing, 1 - goal.smoothing
        if self.is_turned:
            self.weight = self.weight.t().contiguous()
        self.hidden.sub_(self.table[target], alpha=sure)
        self.weight.index_add_(0, target, self.source.to(self.weight.dtype), alpha=-sure)
        if smoothing:
            self.hidden.sub_(mean_row.to(self.hidden.dtype), alpha=smoothing)
            share = smoothing / self.weight.shape[0]
            self.weight.sub_(self.source.sum(0, dtype=self.weight.dtype), alpha=share)
        if self.bias is not None:
            counts = torch.bincount(target, minlength=self.bias.shape[0]).to(self.bias.dtype)
            self.bias.sub_(counts, alpha=sure).sub_(smoothing * target.shape[0] / self.bias.shape[0])
        return self.hidden, self.weight, self.bias
