"""The read as its formula says, line by line: what every other kernel is tested against.

Works for every score, choice, mask and bias, forms the weights, and costs O(query * key) memory for it.
"""

from jaxtyping import Float
from torch import Tensor

from regard.attention.kernels.problem import Problem

__all__ = ["read", "refusal", "weights"]


def refusal(problem: Problem) -> str | None:
    """None: the formula can do everything."""
    return None


def weights(problem: Problem) -> Float[Tensor, "... query key"]:
    """choose(score(query, key) + bias) over the keys that the mask allows."""
    scores = problem.score.compare(problem.query, problem.keys)
    bias = problem.finite_bias()
    if bias is not None:
        scores = scores + bias
    return problem.choose.weights(scores, problem.allowed())


def read(problem: Problem) -> Float[Tensor, "... query value_dim"]:
    """sum_j weight_ij value_j."""
    return weights(problem) @ problem.values
