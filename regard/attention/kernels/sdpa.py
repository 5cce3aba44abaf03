"""The read by torch's fused inner-product attention: weights are never stored.

For scores that are a scaled inner product of mapped queries and keys, with the soft choice.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.choices import Soft
from regard.attention.features import widen
from regard.attention.kernels.half import half_of, has_half_products, with_wide_scores
from regard.attention.kernels.problem import Problem
from regard.attention.masks import Causal
from regard.attention.scores import InnerProduct


def refusal(problem: Problem) -> str | None:
    """Why this kernel cannot do the problem; None if it can."""
    form = problem.form
    if not isinstance(form, InnerProduct):
        return f"score {type(problem.score).__name__} is no inner product"
    if form.cap is not None:
        return "the score is capped"
    if not isinstance(problem.choose, Soft):
        return f"choice {type(problem.choose).__name__} is not Soft"
    return None


def read(problem: Problem) -> Float[Tensor, "... query value_dim"]:
    """out = softmax(scale query keys^T + bias, over allowed keys) values, without forming the weights."""
    query, keys = problem.query, problem.keys
    if query.shape[-1] != keys.shape[-1]:
        problem.score.compare(query[..., :1, :], keys[..., :1, :])  # raises, and says what to do
    form, choose = problem.form, problem.choose
    assert isinstance(form, InnerProduct)
    assert isinstance(choose, Soft)
    beta, scale, dtype = choose.beta, form.scale, query.dtype
    half = half_of(problem) if query.device.type == "cpu" else None
    if half is not None:
        # Queries times beta are not rounded; and without products of half precision, torch's are slower than float32's.
        if isinstance(beta, Tensor) or not has_half_products(half):
            with torch.autocast("cpu", enabled=False):
                return read(with_wide_scores(problem)._replace(values=widen(problem.values))).to(half)
        # Here mask and bias may be of float32.
        problem, dtype = problem._replace(asked=widen(problem.asked)), torch.float32
    if isinstance(beta, Tensor):
        query = query * beta.to(query.dtype)
    else:
        scale = scale * beta
    if problem.bias is None and _is_plainly_causal(problem):
        return _fused(problem, query, mask=None, is_causal=query.shape[-2] > 1, scale=scale)
    bias = problem.added()
    allowed, closed = problem.allowed(bias), None
    finite = None if bias is None or allowed is None else bias.masked_fill(~allowed, 0.0)
    if allowed is not None and problem.may_have_closed_rows():
        closed = ~allowed.any(-1, keepdim=True)
        allowed = allowed | closed
    out = _fused(problem, query, mask=_with_bias(dtype, finite, allowed, beta), is_causal=False, scale=scale)
    return out if closed is None else out.masked_fill(closed, 0.0)


def _is_plainly_causal(problem: Problem) -> bool:
    # One query at the end of its past sees all of it; torch aligns is_causal to the top left, which is the same as
    # ours only when there are as many queries as keys.
    places = problem.places
    whole = places.aligned and places.rows is None
    return isinstance(problem.mask, Causal) and whole and places.num_queries in (1, places.num_keys)


def _with_bias(
    dtype: torch.dtype, finite: Tensor | None, allowed: Tensor | None, beta: float | Tensor
) -> Tensor | None:
    """Mask and bias as the one tensor that torch takes and adds after the scale; beta multiplies the bias too."""
    if finite is None or allowed is None:
        return allowed
    return (finite.to(dtype) * beta).masked_fill(~allowed, float("-inf")).to(dtype)


def _fused(problem: Problem, query: Tensor, *, mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    # torch's fused kernels want (batch, head, ..., dim); a read without heads has one.
    query, keys, values = spread(problem, query, grouped=True)
    added = max(0, 4 - query.dim())
    for _ in range(added):
        query, keys, values = (x.unsqueeze(-3) for x in (query, keys, values))
        mask = None if mask is None else mask.unsqueeze(-3)
    grouped = problem.group > 1
    out = scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=grouped
    )
    for _ in range(added):
        out = out.squeeze(-3)
    return out


def spread(problem: Problem, query: Tensor, *, grouped: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Query, keys and values with the same leading axes, spelled out only where they differ: it costs time.

    grouped: where heads are grouped, keys and values keep theirs.
    """
    keys, values = problem.keys, problem.values
    if problem.group > 1 and not grouped:
        problem = problem.ungrouped()
        keys, values = problem.keys, problem.values
    leading = query.shape[:-2]
    if leading == keys.shape[:-2] == values.shape[:-2]:
        return query, keys, values
    leading = problem.leading
    theirs = (*leading[:-1], keys.shape[-3]) if problem.group > 1 else leading
    query = query.expand(*leading, *query.shape[-2:])
    return query, keys.expand(*theirs, *keys.shape[-2:]), values.expand(*theirs, *values.shape[-2:])
