"""Learned positional encoding."""

from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.layers.forms import LearnedForm
from regard.layers.positions.base import LearnedVectors, PositionSizes, check_size


class Learned(LearnedVectors):
    """Learned positional encoding: one vector for each of `max_length` positions. (gehring2017)"""

    def __init__(self, max_length: int, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(max_length, dim) * 0.02)

    @classmethod
    def create(cls, config: Any, sizes: PositionSizes) -> Self:
        return cls(config.max_length, sizes.width)

    def check(self, sizes: PositionSizes) -> None:
        check_size("dim", self, self.weight.shape[1], sizes.width)

    def vectors(self) -> Float[Tensor, "positions dim"]:
        return self.weight

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.weight.shape))

    def form(self) -> LearnedForm:
        return LearnedForm(self.weight)
