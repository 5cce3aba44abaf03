"""The read by two plain matrix products a head: the fastest form for short reads on a CPU.

    S = scale Q K^T + barrier      one product, which adds mask and bias while it is at it
    out = softmax(S) V             another

It stores the weights, as the formula does, but batches of heads are flattened for the product, and the scale costs
no pass of its own. For scores that are a scaled inner product of mapped queries and keys, with the soft choice.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.choices import Soft
from regard.attention.kernels import sdpa
from regard.attention.kernels.problem import Problem
from regard.attention.scores import InnerProduct

__all__ = ["read", "refusal"]


def refusal(problem: Problem) -> str | None:
    """Why this kernel cannot do the problem; None if it can. What fused inner products refuse, this one does."""
    return sdpa.refusal(problem)


def read(problem: Problem) -> Float[Tensor, "... query value_dim"]:
    """out = softmax(scale query keys^T + bias, over allowed keys) values."""
    query, keys, values = problem.query, problem.keys, problem.values
    form, choose = problem.form, problem.choose
    assert isinstance(form, InnerProduct)
    assert isinstance(choose, Soft)
    if query.shape[-1] != keys.shape[-1]:
        problem.score.compare(query[..., :1, :], keys[..., :1, :])  # raises, and says what to do
    if keys.shape[-2] == 0:
        return query.new_zeros(*query.shape[:-1], values.shape[-1])
    beta, scale = choose.beta, form.scale
    if isinstance(beta, Tensor):
        query = query * beta.to(query.dtype)
    else:
        scale = scale * beta
    query, keys, values = sdpa.spread(problem, query)
    leading = query.shape[:-2]
    barrier, closed = _barrier(problem, query, beta)
    if barrier is None:
        barrier = query.new_empty(1)
        scores = torch.baddbmm(barrier, _flat(query), _flat(keys).mT, beta=0, alpha=scale)
    else:
        scores = torch.baddbmm(_spread(barrier, leading), _flat(query), _flat(keys).mT, alpha=scale)
    out = torch.bmm(scores.softmax(-1), _flat(values)).view(*leading, query.shape[-2], values.shape[-1])
    return out if closed is None else out * ~closed


def _barrier(problem: Problem, query: Tensor, beta: float | Tensor) -> tuple[Tensor | None, Tensor | None]:
    """What is added to the scores, and which rows are closed (their barrier is opened: a softmax needs a key)."""
    bias = problem.added()
    allowed, closed = problem.allowed(bias), None
    if allowed is None:
        return None, None
    if problem.may_have_closed_rows():
        closed = ~allowed.any(-1, keepdim=True)
        allowed = allowed | closed
    if bias is None:
        return torch.zeros_like(allowed, dtype=query.dtype).masked_fill_(~allowed, float("-inf")), closed
    finite = bias.masked_fill(bias == float("-inf"), 0.0)
    return (finite * beta).to(query.dtype).masked_fill(~allowed, float("-inf")), closed


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, *tensor.shape[-2:])  # (batch * heads, time, dim)


def _spread(barrier: Tensor, leading: torch.Size) -> Tensor:
    """The barrier with the read's leading axes in one, as the product broadcasts only one."""
    if all(size == 1 for size in barrier.shape[:-2]):
        return barrier.reshape(1, *barrier.shape[-2:])
    return _flat(barrier.expand(*leading, *barrier.shape[-2:]))
