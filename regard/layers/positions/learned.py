"""Learned positional encoding.

    P[i] = row i of a table

Source: gehring2017.
"""

from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.layers.forms import LearnedForm
from regard.layers.positions.base import PositionalEncoding, PositionSizes, check_range, check_size


class Learned(PositionalEncoding):
    """Learned positional encoding: one vector for each of `max_length` positions.

    Raises: ValueError if the items extend beyond the last position.
    """

    def __init__(self, max_length: int, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(max_length, dim) * 0.02)

    @classmethod
    def create(cls, config: Any, sizes: PositionSizes) -> Self:
        return cls(config.max_length, sizes.width)

    def check(self, sizes: PositionSizes) -> None:
        check_size("dim", self, self.weight.shape[1], sizes.width)

    @property
    def max_length(self) -> int:
        return len(self.weight)

    def add(
        self, items: Float[Tensor, "batch time dim"], start: int = 0
    ) -> Float[Tensor, "batch time dim"]:
        end = start + items.shape[1]
        if end > self.max_length:
            raise ValueError(f"at most {self.max_length} positions were learned, got {end}")
        return items + self.weight[start:end]

    def matrix(self, length: int, start: int = 0) -> Float[Tensor, "length dim"]:
        check_range(start, length, self.max_length)
        return self.weight[start : start + length]

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.weight.shape))

    def form(self) -> LearnedForm:
        return LearnedForm(self.weight)
