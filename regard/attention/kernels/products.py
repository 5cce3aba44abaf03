"""The read by two plain matrix products a head: the fastest form for short reads on a CPU.

    S = scale Q K^T + barrier      one product, which adds mask and bias while it is at it
    out = softmax(S) V             another

It stores the weights, as the formula does, but batches of heads are flattened for the product, and the scale costs
no pass of its own. For scores that are a scaled inner product of mapped queries and keys, with the soft choice.
"""

import functools

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.axes import is_plain
from regard.attention.choices import Soft
from regard.attention.features import widen
from regard.attention.kernels import sdpa
from regard.attention.kernels.half import half_of, has_half_products, shares, takes_shares, with_wide_scores
from regard.attention.kernels.problem import Problem
from regard.attention.kernels.rows import softmax
from regard.attention.masks import Causal
from regard.attention.scores import InnerProduct

_KEPT = 2**20
"""Numbers up to which the barrier of a causal mask is kept from read to read."""


def refusal(problem: Problem) -> str | None:
    """Why this kernel cannot do the problem; None if it can. What fused inner products refuse, this one does."""
    return sdpa.refusal(problem)


def read(problem: Problem) -> Float[Tensor, "... query value_dim"]:
    """out = softmax(scale query keys^T + bias, over allowed keys) values."""
    dtype = half_of(problem)
    if dtype is None:
        return _read(problem)
    with torch.autocast(problem.query.device.type, enabled=False):
        return _read_half(problem, dtype)


def _read_half(problem: Problem, dtype: torch.dtype) -> Tensor:
    """The read of half precision, with scores in float32; see regard.attention.kernels.half."""
    choose, form = problem.choose, problem.form
    assert isinstance(form, InnerProduct)
    assert isinstance(choose, Soft)
    has_products = has_half_products(dtype)
    wide = with_wide_scores(problem)
    values = problem.values.to(dtype) if has_products else widen(problem.values)
    if not has_products or isinstance(choose.beta, Tensor) or not takes_shares():
        return _read(wide._replace(values=values)).to(dtype)
    query, keys, values = sdpa.spread(problem._replace(values=values), problem.query)
    if query.shape[-1] != keys.shape[-1]:
        problem.score.compare(query[..., :1, :], keys[..., :1, :])  # raises, and says what to do
    leading = query.shape[:-2]
    barrier, closed = _barrier(wide, wide.query, choose.beta)
    barrier = None if barrier is None else _spread(barrier, leading)
    share = shares(_flat(query.to(dtype)), _flat(keys.to(dtype)).mT, barrier, form.scale * choose.beta)
    out = torch.bmm(share, _flat(values)).view(*leading, query.shape[-2], values.shape[-1])
    return out if closed is None else out * ~closed


def _read(problem: Problem) -> Tensor:
    query, keys, values = problem.query, problem.keys, problem.values
    form, choose = problem.form, problem.choose
    assert isinstance(form, InnerProduct)
    assert isinstance(choose, Soft)
    if query.shape[-1] != keys.shape[-1]:
        problem.score.compare(query[..., :1, :], keys[..., :1, :])  # raises, and says what to do
    beta, scale = choose.beta, form.scale
    if isinstance(beta, Tensor):
        query = query * beta.to(query.dtype)
    else:
        scale = scale * beta
    query, keys, values = sdpa.spread(problem, query)
    leading = query.shape[:-2]
    barrier, closed = _barrier(problem, query, beta)
    barrier = None if barrier is None else _spread(barrier, leading)
    scores = _scores(_flat(query), _flat(keys).mT, barrier, scale, problem.bias is not None)
    out = torch.bmm(softmax(scores).to(values.dtype), _flat(values)).view(*leading, query.shape[-2], values.shape[-1])
    return out if closed is None else out * ~closed


def _scores(query: Tensor, keys: Tensor, barrier: Tensor | None, scale: float, has_bias: bool) -> Tensor:
    """scale query keys + barrier, (batch * head, query, key).

    Products scale for free, but their gradients do not: those of queries and keys would each be scaled. With
    gradients the smaller of scores and queries is scaled, which is the smaller thing to scale on the way back, too.
    """
    if not (torch.is_grad_enabled() and (query.requires_grad or keys.requires_grad)):
        if barrier is None:
            return torch.baddbmm(query.new_empty(1), query, keys, beta=0, alpha=scale)
        return torch.baddbmm(barrier, query, keys, alpha=scale)
    if has_bias or scale <= 0 or keys.shape[-1] >= query.shape[-1]:
        query = query * scale
        return torch.bmm(query, keys) if barrier is None else torch.baddbmm(barrier, query, keys)
    # Here a barrier is 0 or minus infinity, which no scale changes.
    return (torch.bmm(query, keys) if barrier is None else torch.baddbmm(barrier, query, keys)).mul_(scale)


def _barrier(problem: Problem, query: Tensor, beta: float | Tensor) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the scores, and which rows are closed (their barrier is opened: a softmax needs a key)."""
    places = problem.places
    if problem.bias is None and isinstance(problem.mask, Causal) and not problem.may_have_closed_rows():
        small = places.num_queries * places.num_keys <= _KEPT
        if small and places.aligned and places.rows is None and is_plain():
            return _causal_barrier(places.num_queries, places.num_keys, query.dtype, query.device), None
    bias = problem.added()
    allowed, closed = problem.allowed(bias), None
    if allowed is None:
        return None, None
    finite = None if bias is None else bias.masked_fill(~allowed, 0.0)
    if problem.may_have_closed_rows():
        closed = ~allowed.any(-1, keepdim=True)
        allowed = allowed | closed
    if finite is None:
        return torch.zeros_like(allowed, dtype=query.dtype).masked_fill_(~allowed, float("-inf")), closed
    return (finite * beta).to(query.dtype).masked_fill(~allowed, float("-inf")), closed


@functools.lru_cache(maxsize=16)
def _causal_barrier(num_queries: int, num_keys: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Minus infinity beyond each query's own place; making it takes as long as a product of short reads."""
    with torch.inference_mode(False):  # or it could not serve a read with gradients later
        barrier = torch.full((num_queries, num_keys), float("-inf"), dtype=dtype, device=device)
        return barrier.triu_(num_keys - num_queries + 1)


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, *tensor.shape[-2:])  # (batch * heads, time, dim)


def _spread(barrier: Tensor, leading: torch.Size) -> Tensor:
    """The barrier with the read's leading axes in one, as the product broadcasts only one."""
    if all(size == 1 for size in barrier.shape[:-2]):
        return barrier.reshape(1, *barrier.shape[-2:])
    return _flat(barrier.expand(*leading, *barrier.shape[-2:]))
