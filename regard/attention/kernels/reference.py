"""The read as its formula says, line by line: what every other kernel is tested against.

Works for every score, choice, mask and bias, forms the weights, and costs O(query * key) memory for it.
"""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from regard.attention.features import widen
from regard.attention.kernels.half import half_of, with_wide_scores
from regard.attention.kernels.problem import Problem


def refusal(problem: Problem) -> str | None:
    """None: the formula can do everything."""
    return None


def weights(problem: Problem) -> Float[Tensor, "... query key"]:
    """choose(score(query, key) + bias) over the keys that the mask allows, in the dtype of the queries."""
    return problem.choose.weights(*scored(problem)).to(problem.query.dtype)


def scored(problem: Problem) -> tuple[Float[Tensor, "... query key"], Bool[Tensor, "..."] | None]:
    """score(query, key) + bias, and which pairs may be read: what a choice is made from.

    In half precision they are of float32, and computed in it if the score has a form: others may have parameters of
    half precision.
    """
    if half_of(problem) is None:
        return _with_bias(problem, _compare(problem))
    wide = with_wide_scores(problem)
    scores = None if problem.form is not None else widen(_compare(problem))
    with torch.autocast(problem.query.device.type, enabled=False):
        return _with_bias(wide, _compare(wide) if scores is None else scores)


def _with_bias(problem: Problem, scores: Tensor) -> tuple[Tensor, Tensor | None]:
    bias = problem.added()
    allowed = problem.allowed(bias)
    if bias is not None:
        assert allowed is not None
        scores = scores + bias.masked_fill(~allowed, 0.0)
    return scores, allowed


def read(problem: Problem) -> Float[Tensor, "... query value_dim"]:
    """sum_j weight_ij value_j."""
    half, share = half_of(problem), problem.choose.weights(*scored(problem))
    if half is None:
        return _mixed(share, problem.values, problem.group)
    with torch.autocast(problem.query.device.type, enabled=False):
        return _mixed(widen(share), widen(problem.values), problem.group).to(half)


def _mixed(share: Tensor, values: Tensor, group: int) -> Tensor:
    if group == 1:
        return share @ values
    return unfold(fold(share, group) @ values, group)


def _compare(problem: Problem) -> Tensor:
    """Scores of all pairs. Heads of queries that share a head of the memory are read as more queries of it."""
    group = problem.group
    if group == 1:
        return problem.score.compare(problem.query, problem.keys)
    if problem.score.num_heads is not None:  # each head scores in its own way
        return problem.score.compare(problem.query, problem.ungrouped().keys)
    return unfold(problem.score.compare(fold(problem.query, group), problem.keys), group)


def fold(tensor: Shaped[Tensor, "..."], group: int) -> Shaped[Tensor, "..."]:
    """Heads of queries that share a head of the memory, (..., head, query, size), as more queries of it."""
    return tensor.unflatten(-3, (-1, group)).flatten(-3, -2)  # (..., memory head, group * query, size)


def unfold(tensor: Shaped[Tensor, "..."], group: int) -> Shaped[Tensor, "..."]:
    """`fold` undone."""
    return tensor.unflatten(-2, (group, -1)).flatten(-4, -3)  # (..., head, query, size)
