"""The read as its formula says, line by line: what every other kernel is tested against.

Works for every score, choice, mask and bias, forms the weights, and costs O(query * key) memory for it.
"""

from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from regard.attention.kernels.problem import Problem

__all__ = ["fold", "read", "refusal", "scored", "unfold", "weights"]


def refusal(problem: Problem) -> str | None:
    """None: the formula can do everything."""
    return None


def weights(problem: Problem) -> Float[Tensor, "... query key"]:
    """choose(score(query, key) + bias) over the keys that the mask allows."""
    return problem.choose.weights(*scored(problem))


def scored(problem: Problem) -> tuple[Float[Tensor, "... query key"], Bool[Tensor, "..."] | None]:
    """score(query, key) + bias, and which pairs may be read: what a choice is made from."""
    scores = _compare(problem)
    bias = problem.added()
    allowed = problem.allowed(bias)
    if bias is not None:
        assert allowed is not None
        scores = scores + bias.masked_fill(~allowed, 0.0)
    return scores, allowed


def read(problem: Problem) -> Float[Tensor, "... query value_dim"]:
    """sum_j weight_ij value_j."""
    share, group = weights(problem), problem.group
    if group == 1:
        return share @ problem.values
    return unfold(fold(share, group) @ problem.values, group)


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
