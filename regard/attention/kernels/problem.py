"""What a kernel is given: mapped queries and keys, values, and the rules of the read."""

from typing import NamedTuple

from torch import Tensor

from regard.attention.choices import Choice
from regard.attention.masks import Mask, align
from regard.attention.scores import Score

__all__ = ["Problem"]


class Problem(NamedTuple):
    """One read, ready to compute: queries and keys are already mapped by the score."""

    query: Tensor
    """(..., query, dim)"""
    keys: Tensor
    """(..., key, dim)"""
    values: Tensor
    """(..., key, value_dim)"""
    score: Score
    choose: Choice
    mask: Mask | None
    bias: Tensor | None

    @property
    def num_axes(self) -> int:
        """Axes of the weights."""
        return max(self.query.dim(), self.keys.dim())

    def allowed(self) -> Tensor | None:
        """Which pairs may be read, broadcasting to the weights: the mask, less what a bias of -inf closes."""
        open_by_bias = None if self.bias is None else align(self.bias, self.num_axes) != float("-inf")
        if self.mask is None:
            return open_by_bias
        size = self.query.shape[-2], self.keys.shape[-2]
        allowed = align(self.mask.tensor(*size, device=self.query.device), self.num_axes)
        return allowed if open_by_bias is None else allowed & open_by_bias

    def finite_bias(self) -> Tensor | None:
        """The bias, broadcasting to the weights, with zeros where `allowed` already says no."""
        if self.bias is None:
            return None
        bias = align(self.bias, self.num_axes)
        return bias.masked_fill(bias == float("-inf"), 0.0)
