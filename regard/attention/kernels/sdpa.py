"""The read by torch's fused inner-product attention: weights are never stored.

For scores that are a scaled inner product of mapped queries and keys, with the soft choice.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.choices import Soft
from regard.attention.kernels.problem import Problem
from regard.attention.masks import Causal

__all__ = ["read", "refusal"]


def refusal(problem: Problem) -> str | None:
    """Why this kernel cannot do the problem; None if it can."""
    if problem.score.scale(problem.query.shape[-1]) is None:
        return f"score {type(problem.score).__name__} is no inner product"
    if not isinstance(problem.choose, Soft):
        return f"choice {type(problem.choose).__name__} is not Soft"
    return None


def read(problem: Problem) -> Float[Tensor, "... query value_dim"]:
    """out = softmax(scale query keys^T + bias, over allowed keys) values, without forming the weights."""
    query, keys, values = problem.query, problem.keys, problem.values
    if query.shape[-1] != keys.shape[-1]:
        problem.score.compare(query[..., :1, :], keys[..., :1, :])  # raises, and says what to do
    if keys.shape[-2] == 0:
        return query.new_zeros(*query.shape[:-1], values.shape[-1])
    assert isinstance(problem.choose, Soft)
    beta, scale = problem.choose.beta, problem.score.scale(query.shape[-1])
    assert scale is not None
    scale = scale * beta
    num_queries, num_keys = query.shape[-2], keys.shape[-2]
    if problem.bias is None and isinstance(problem.mask, Causal) and num_queries in (1, num_keys):
        # One query at the end of its past sees all of it; torch aligns is_causal to the top left, which is the
        # same as ours only when there are as many queries as keys.
        return _fused(query, keys, values, mask=None, is_causal=num_queries > 1, scale=scale)
    allowed, closed = problem.allowed(), None
    if allowed is not None and _may_have_closed_rows(problem):
        closed = ~allowed.any(-1, keepdim=True)
        allowed = allowed | closed
    out = _fused(query, keys, values, mask=_with_bias(problem, allowed, beta), is_causal=False, scale=scale)
    return out if closed is None else out.masked_fill(closed, 0.0)


def _may_have_closed_rows(problem: Problem) -> bool:
    size = problem.query.shape[-2], problem.keys.shape[-2]
    return problem.bias is not None or problem.mask is None or problem.mask.may_have_closed_rows(*size)


def _with_bias(problem: Problem, allowed: Tensor | None, beta: float) -> Tensor | None:
    """Mask and bias as the one tensor that torch takes and adds after the scale; beta multiplies the bias too."""
    bias = problem.finite_bias()
    if bias is None or allowed is None:
        return allowed
    return (bias * beta).to(problem.query.dtype).masked_fill(~allowed, float("-inf"))


def _fused(
    query: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    # torch's fused kernels want (batch, head, ..., dim); a read without heads has one. Broadcasting over leading
    # axes is spelled out, as the kernels do not do it, and only where it is needed: it costs more than a short read.
    leading = query.shape[:-2]
    if not leading == keys.shape[:-2] == values.shape[:-2]:
        leading = torch.broadcast_shapes(leading, keys.shape[:-2], values.shape[:-2])
        query, keys, values = (x.expand(*leading, *x.shape[-2:]) for x in (query, keys, values))
    added = max(0, 2 - len(leading))
    for _ in range(added):
        query, keys, values = (x.unsqueeze(-3) for x in (query, keys, values))
        mask = None if mask is None else mask.unsqueeze(-3)
    out = scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=is_causal, scale=scale)
    for _ in range(added):
        out = out.squeeze(-3)
    return out
