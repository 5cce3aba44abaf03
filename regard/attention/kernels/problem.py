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
        """The mask as a tensor that broadcasts to the weights; None when every key may be seen."""
        if self.mask is None:
            return None
        size = self.query.shape[-2], self.keys.shape[-2]
        return align(self.mask.tensor(*size, device=self.query.device), self.num_axes)

    def aligned_bias(self) -> Tensor | None:
        """The bias, broadcasting to the weights."""
        return None if self.bias is None else align(self.bias, self.num_axes)
