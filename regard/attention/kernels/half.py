"""Reads in half precision keep their scores in float32: a rounded score changes its weight by a factor.

    S = scale Q K^T + barrier        float32
    P = softmax(S)                   computed in float32, rounded for the product with the values
    dS = P (dP - sum P dP)           computed in float32, rounded for the products with queries and keys

torch's products of half precision on a CPU return half precision. A second product recovers what the first lost,
because oneDNN adds to the output in float32 and rounds once: S = high + (scale Q K^T - high). Where the processor has
no products of half precision, torch computes them number by number, ten times slower than in float32: there all
products are of float32.

Source: the error of rounded scores, dao2022, section 3.1 (softmax statistics in float32).
"""

import functools

import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard.attention.axes import is_plain
from regard.attention.features import widen
from regard.attention.kernels.problem import Problem
from regard.attention.kernels.rows import softmax

_CHUNK = 1 << 19
"""Scores computed at a time: in float32 they stay in the second or third cache."""


def half_of(problem: Problem) -> torch.dtype | None:
    """The half precision that the products of a read round to, that of autocast included; None for other reads."""
    query = problem.query
    dtype = query.dtype
    if dtype != torch.float64 and torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
    return dtype if dtype in (torch.bfloat16, torch.float16) else None


def with_wide_scores(problem: Problem) -> Problem:
    """The read with mapped queries, keys and what biases depend on in float32, so that scores are, too."""
    return problem._replace(
        query=widen(problem.query), keys=widen(problem.keys), asked=widen(problem.asked), prepared=None
    )


@functools.cache
def has_half_products(dtype: torch.dtype) -> bool:
    """Whether torch computes CPU products of this dtype with oneDNN on this processor."""
    name = "_is_mkldnn_bf16_supported" if dtype == torch.bfloat16 else "_is_mkldnn_fp16_supported"
    try:
        return bool(getattr(torch.ops.mkldnn, name)())
    except (AttributeError, RuntimeError):
        return False


def takes_shares() -> bool:
    """Whether `shares` can be used: not in a compiled, mapped or traced function, nor for forward derivatives."""
    return is_plain() and forward_ad._current_level < 0


def shares(query: Tensor, keys: Tensor, barrier: Tensor | None, scale: float) -> Tensor:
    """softmax(scale query keys + barrier) in the dtype of the queries, of scores in float32.

    Shapes: query (rows, query, dim), keys (rows, dim, key), barrier (rows or 1, query, key) of float32.
    """
    return _Shares.apply(query, keys, barrier, scale)


class _Shares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query: Tensor, keys: Tensor, barrier: Tensor | None, scale: float) -> Tensor:
        out = query.new_empty(len(query), query.shape[1], keys.shape[2])
        rest = torch.empty_like(out) if any(ctx.needs_input_grad) else None
        for part in _chunks(out):
            scores = _scores(query[part], keys[part], scale)
            if barrier is not None:
                scores += barrier if len(barrier) == 1 else barrier[part]
            share = softmax(scores)
            out[part] = share
            if rest is not None:
                rest[part] = share.sub_(out[part])
        ctx.scale, ctx.rows = scale, None if barrier is None else len(barrier)
        ctx.save_for_backward(query, keys, out, rest)
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        # Operators that have gradients themselves, for gradients of gradients.
        query, keys, out, rest = ctx.saved_tensors
        of_query, of_keys, of_barrier = [], [], []
        for part in _chunks(out):
            share, slope = out[part].float() + rest[part], gradient[part].float()
            of_scores = share * (slope - (share * slope).sum(-1, keepdim=True))
            if ctx.needs_input_grad[2]:
                of_barrier.append(of_scores if ctx.rows > 1 else of_scores.sum(0, keepdim=True))
            of_products = (of_scores * ctx.scale).to(query.dtype)
            of_query.append(torch.bmm(of_products, keys[part].mT))
            of_keys.append(torch.bmm(query[part].mT, of_products))
        to_barrier = None
        if of_barrier:
            to_barrier = torch.cat(of_barrier) if ctx.rows > 1 else torch.stack(of_barrier).sum(0)
        return torch.cat(of_query), torch.cat(of_keys), to_barrier, None


def _scores(query: Tensor, keys: Tensor, scale: float) -> Tensor:
    """scale query keys in float32, by two products."""
    high = torch.baddbmm(query.new_empty(1), query, keys, beta=0, alpha=scale)
    low = torch.baddbmm(high, query, keys, alpha=-scale)  # high - scale query keys: what high is too large by
    return high.float().sub_(low)


def _chunks(out: Tensor) -> list[slice]:
    step = max(1, _CHUNK // max(1, out[0].numel()))
    return [slice(first, first + step) for first in range(0, len(out), step)]
