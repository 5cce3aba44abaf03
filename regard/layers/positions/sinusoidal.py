"""Sinusoidal positional encoding.

    P[i, 2j] = sin(i / 10000^(2j/d)),  P[i, 2j+1] = cos(i / 10000^(2j/d))

Source: lectures, D.1; vaswani2017, section 3.5.
"""

import math
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from regard.layers.forms import SinusoidsForm
from regard.layers.positions.base import Items, PositionalEncoding, PositionSizes, check_size
from regard.ops.constants import constant

_LEAST_ROWS = 256
"""Rows of the smallest table that is kept; a longer one has twice as many, and so on."""


def sinusoids(start: int, length: int, dim: int) -> Float[Tensor, "length dim"]:
    """Return rows start .. start + length - 1 of P in float64; an odd dim ends with a sine."""
    position = torch.arange(start, start + length, dtype=torch.float64, device="cpu")[:, None]
    pairs = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu")
    angle = position * torch.exp(pairs * (-math.log(10000.0) / dim))
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)[:, :dim]


class Sinusoidal(PositionalEncoding):
    """Sinusoidal positional encoding: fixed sines and cosines for any length."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim

    @classmethod
    def create(cls, config: Any, sizes: PositionSizes) -> Self:
        return cls(sizes.width)

    def check(self, sizes: PositionSizes) -> None:
        check_size("dim", self, self.dim, sizes.width)

    def add(self, items: Items, start: int = 0) -> Items:
        count, wide = items.shape[1], torch.promote_types(items.dtype, torch.float32)
        if torch.compiler.is_exporting():  # a table in the graph would limit the length
            rows = sinusoids(start, count, self.dim).to(items.device, wide)
        else:
            end, size = start + count, _LEAST_ROWS
            while size < end:
                size *= 2
            table = constant(sinusoids, 0, size, self.dim, device=items.device, dtype=wide)
            rows = table[start:end]
        return items + rows.to(items.dtype)

    def matrix(self, length: int, start: int = 0) -> Float[Tensor, "length dim"]:
        return self._round(sinusoids(start, length, self.dim))

    def extra_repr(self) -> str:
        return str(self.dim)

    def form(self) -> SinusoidsForm:
        return SinusoidsForm(self.dim)
