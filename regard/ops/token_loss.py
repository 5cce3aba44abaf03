"""Output layer and cross-entropy, fused and chunked: the logits of all tokens never exist at once.

    z    = W h + b        p = softmax(z)        q = (1 - e) onehot(target) + e / V
    loss = sum over tokens of - sum_v q_v log p_v
         = sum over tokens of (1 - e) (lse(z) - z_target) + e (lse(z) - mean(z))

The logits (tokens, vocab) are by far the largest tensor of a small model: here they are computed
for a chunk of tokens at a time. On a CPU a chunk fits into the cache; on an accelerator a chunk is
half a gigabyte, as each adds a whole gradient of the table. The gradient is computed in the same
pass, from exp(z - max):

    dh = (exp(z - max) / s) W - q W      dW = exp(z - max)^T (h / s) - q^T h
    s  = sum_v exp(z_v - max)

so that p is not normalized element by element, and q W and q^T h need only row sums and one row per
token. e is the label smoothing.

Source: szegedy2016, section 7 (label smoothing).
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops.dispatch import native
from regard.ops.linear import linear

_CHUNK_BYTES, _ACCELERATOR_CHUNK_BYTES = 16 << 20, 512 << 20
"""Maximum size of a chunk of logits: on a CPU it fits into the last-level cache."""


class TokenLoss(NamedTuple):
    """Sums over tokens, in nats."""

    total: Float[Tensor, ""]
    """Training objective, with label smoothing."""
    nll: Float[Tensor, ""]
    """-log p(target), for reports. No gradient."""


def token_loss(
    hidden: Float[Tensor, "tokens dim"],
    weight: Float[Tensor, "vocab dim"],
    bias: Float[Tensor, " vocab"] | None,
    target: Int[Tensor, " tokens"],
    *,
    smoothing: float = 0.0,
) -> TokenLoss:
    """Return the cross-entropy of softmax(hidden weight^T + bias) with `target`, summed.

    Differentiable once, in hidden, weight and bias.
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be at least 0 and below 1, got {smoothing}")
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    # Within the function gradients are disabled, and inputs that require them still do.
    inputs = target, smoothing, dtype, torch.is_grad_enabled()
    return TokenLoss(*_ChunkedLoss.apply(hidden, weight, bias, inputs))


def _rows_per_chunk(tokens: int, table: Tensor) -> int:
    """Return the number of tokens in a chunk; on an accelerator all chunks are equally large."""
    size = table.shape[0] * table.element_size()
    if table.device.type == "cpu":
        return max(64, _CHUNK_BYTES // size)
    num_chunks = max(1, math.ceil(tokens * size / _ACCELERATOR_CHUNK_BYTES))
    return max(64, math.ceil(tokens / num_chunks))


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        inputs: tuple[Tensor, float, torch.dtype, bool],
    ) -> tuple[Tensor, Tensor]:
        target, smoothing, dtype, is_differentiated = inputs
        source, table = hidden.to(dtype), weight.to(dtype)
        sum_dtype = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        mean_row, gradients = weight.mean(0), None
        if is_differentiated and any(ctx.needs_input_grad):
            gradients = _Gradients(source, table, bias, sum_dtype=sum_dtype)
        totals = torch.zeros(2, dtype=sum_dtype, device=hidden.device)
        rows = _rows_per_chunk(hidden.shape[0], table)
        for first in range(0, hidden.shape[0], rows):
            chunk = slice(first, first + rows)
            states = source[chunk]
            scores = linear(states, table)  # (tokens, vocab)
            name = "exponentiate_rows.cuda" if scores.is_cuda else "exponentiate_rows"
            exponentiate = native(name, scores) if bias is None else None
            scores = scores if exponentiate is not None else scores.to(sum_dtype)
            mean = (states.to(mean_row.dtype) @ mean_row)[:, None]
            if bias is not None:
                scores += bias
                mean = mean + bias.mean()
            of_target = scores.gather(1, target[chunk, None]).to(sum_dtype)
            if exponentiate is not None:  # in place
                highest, total = exponentiate.run(scores)
            else:
                highest = scores.amax(1, keepdim=True)
                total = scores.sub_(highest).exp_().sum(1, keepdim=True)
            log_total = highest + total.log()
            if gradients is not None:
                gradients.add(chunk, scores.to(dtype), total)
            del scores  # before those of the next chunk are computed
            nll = (log_total - of_target).sum()
            smooth = (log_total - mean).sum()
            totals += torch.stack(((1 - smoothing) * nll + smoothing * smooth, nll))
        if gradients is not None:
            of_hidden, of_weight, of_bias = gradients.finish(target, smoothing, mean_row)
            ctx.save_for_backward(of_hidden.to(hidden.dtype), of_weight.to(weight.dtype), of_bias)
        total, nll = totals.unbind()
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(ctx, of_total: Tensor, of_nll: Tensor) -> tuple[Tensor | None, ...]:
        gradients = [None if g is None else g * of_total.to(g.dtype) for g in ctx.saved_tensors]
        return *gradients, None


class _Gradients:
    """Gradients of the loss, accumulated chunk by chunk."""

    def __init__(
        self, hidden: Tensor, table: Tensor, bias: Tensor | None, *, sum_dtype: torch.dtype
    ):
        self.source, self.table = hidden, table
        self.hidden = torch.empty_like(hidden)
        self.is_transposed = native("linear", hidden, table, needs_grad=True) is not None
        self.weight = table.new_zeros(table.shape, dtype=sum_dtype)
        if self.is_transposed:
            self.weight = torch.zeros_like(table.t(), dtype=sum_dtype)
        self.bias = None if bias is None else torch.zeros_like(bias, dtype=sum_dtype)

    def add(self, chunk: slice, exps: Tensor, total: Tensor) -> None:
        """Add the gradient of lse(z); `exps` are exp(z - max), `total` their sums (tokens, 1)."""
        inverse = total.reciprocal()
        if self.is_transposed:
            torch.mul(linear(exps, self.table.t()), inverse, out=self.hidden[chunk])
        else:
            torch.mm(exps, self.table, out=self.hidden[chunk]).mul_(inverse)
        scaled = self.source[chunk] * inverse.to(self.source.dtype)
        if self.is_transposed:  # the smaller operand is the transposed one
            self.weight.add_(linear(scaled.t(), exps.t()))
        elif self.weight.dtype == exps.dtype:
            self.weight.addmm_(exps.t(), scaled)
        elif exps.is_cuda:
            left, dtype = exps.t(), self.weight.dtype
            torch.addmm(self.weight, left, scaled, out_dtype=dtype, out=self.weight)
        else:
            part = exps.t() @ scaled
            accumulate = native("accumulate", self.weight, part)
            if accumulate is None:
                self.weight.add_(part)
            else:
                accumulate.run(self.weight, part.contiguous())
        if self.bias is not None:
            self.bias.add_((exps.t() @ inverse.to(exps.dtype)).squeeze(-1))

    def finish(
        self, target: Tensor, smoothing: float, mean_row: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Subtract the gradient of q and return the gradients."""
        confidence = 1 - smoothing
        if self.is_transposed:
            self.weight = self.weight.t().contiguous()
        self.hidden.sub_(self.table[target], alpha=confidence)
        self.weight.index_add_(0, target, self.source.to(self.weight.dtype), alpha=-confidence)
        if smoothing:
            self.hidden.sub_(mean_row.to(self.hidden.dtype), alpha=smoothing)
            share = smoothing / self.weight.shape[0]
            self.weight.sub_(self.source.sum(0, dtype=self.weight.dtype), alpha=share)
        if self.bias is not None:
            counts = torch.bincount(target, minlength=self.bias.shape[0]).to(self.bias.dtype)
            self.bias.sub_(counts, alpha=confidence)
            self.bias.sub_(smoothing * target.shape[0] / self.bias.shape[0])
        return self.hidden, self.weight, self.bias
