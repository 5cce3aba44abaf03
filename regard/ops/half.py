"""The softmax of scores of half-precision queries and keys, with scores in float32.

    S = scale Q K^T + mask           float32
    P = softmax(S)                   computed in float32, rounded for the product with the values
    dS = P (dP - sum P dP)           computed in float32, rounded for the products with Q and K

torch's half-precision products on a CPU return half precision. A second product recovers the
rounding error of the first, because oneDNN adds to the output in float32 and rounds once: S = high
+ (scale Q K^T - high). On processors without half-precision products, torch computes them number by
number, ten times slower than in float32.

Source: the error of rounded scores, dao2022, section 3.1 (softmax statistics in float32).
"""

import functools

import torch
from torch import Tensor

from regard.compat.torch import run_while_tracing
from regard.ops.softmax import softmax

_CHUNK = 1 << 19
"""Scores computed at a time: in float32 they stay in the L2 or L3 cache."""


@run_while_tracing
def has_half_products(dtype: torch.dtype) -> bool:
    """Return True if torch computes CPU products of this dtype with oneDNN on this processor."""
    return _has_half_products(dtype)


@functools.cache
def _has_half_products(dtype: torch.dtype) -> bool:
    name = "_is_mkldnn_bf16_supported" if dtype == torch.bfloat16 else "_is_mkldnn_fp16_supported"
    try:
        return bool(getattr(torch.ops.mkldnn, name)())
    except (AttributeError, RuntimeError):
        return False


def half_softmax(query: Tensor, keys: Tensor, additive_mask: Tensor | None, scale: float) -> Tensor:
    """Return softmax(scale query keys + additive_mask) in the dtype of the queries.

    Shapes: query (rows, query, dim), keys (rows, dim, key), additive_mask (rows or 1, query, key)
            of float32.
    """
    return _HalfSoftmax.apply(query, keys, additive_mask, scale)


class _HalfSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, query: Tensor, keys: Tensor, additive_mask: Tensor | None, scale: float
    ) -> Tensor:
        out = query.new_empty(len(query), query.shape[1], keys.shape[2])
        residual = torch.empty_like(out) if any(ctx.needs_input_grad) else None
        for part in _chunks(out):
            scores = _scores(query[part], keys[part], scale)
            if additive_mask is not None:
                scores += additive_mask if len(additive_mask) == 1 else additive_mask[part]
            weights = softmax(scores)
            out[part] = weights
            if residual is not None:
                residual[part] = weights.sub_(out[part])
        ctx.scale, ctx.rows = scale, None if additive_mask is None else len(additive_mask)
        ctx.save_for_backward(query, keys, out, residual)
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        # Differentiable operators, for gradients of gradients.
        query, keys, out, residual = ctx.saved_tensors
        grad_query, grad_keys, grad_masks = [], [], []
        for part in _chunks(out):
            weights, grad_weights = out[part].float() + residual[part], gradient[part].float()
            grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, keepdim=True))
            if ctx.needs_input_grad[2]:
                grad_masks.append(grad_scores if ctx.rows > 1 else grad_scores.sum(0, keepdim=True))
            grad_products = (grad_scores * ctx.scale).to(query.dtype)
            grad_query.append(torch.bmm(grad_products, keys[part].mT))
            grad_keys.append(torch.bmm(query[part].mT, grad_products))
        grad_mask = None
        if grad_masks:
            grad_mask = torch.cat(grad_masks) if ctx.rows > 1 else torch.stack(grad_masks).sum(0)
        return torch.cat(grad_query), torch.cat(grad_keys), grad_mask, None


def _scores(query: Tensor, keys: Tensor, scale: float) -> Tensor:
    high = torch.baddbmm(query.new_empty(1), query, keys, beta=0, alpha=scale)
    # The rounding error of high: high - scale query keys.
    low = torch.baddbmm(high, query, keys, alpha=-scale)
    return high.float().sub_(low)


def _chunks(out: Tensor) -> list[slice]:
    step = max(1, _CHUNK // max(1, out[0].numel()))
    return [slice(first, first + step) for first in range(0, len(out), step)]
