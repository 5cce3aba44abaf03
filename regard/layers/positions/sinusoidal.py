"""Sinusoidal positional encoding.

    P[i, 2j] = sin(i / 10000^(2j/d)),  P[i, 2j+1] = cos(i / 10000^(2j/d))

Source: lectures, D.1; vaswani2017, section 3.5.
"""

import math
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from regard.layers.forms import NoFormError, SinusoidsForm
from regard.layers.positions.base import Items, PositionalEncoding, PositionSizes, check_size


def sinusoids(start: int, length: int, dim: int) -> Float[Tensor, "length dim"]:
    """Return rows start .. start + length - 1 of P; an odd dim ends with a sine."""
    position = torch.arange(start, start + length, dtype=torch.float64)[:, None]
    rate = torch.exp(torch.arange(0, dim, 2, dtype=torch.float64) * (-math.log(10000.0) / dim))
    angle = position * rate
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)[:, :dim].float()


class Sinusoidal(PositionalEncoding):
    """Sinusoidal positional encoding: fixed sines and cosines for any length."""

    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim
        self.register_buffer("_table", sinusoids(0, 256, dim), persistent=False)

    @classmethod
    def create(cls, config: Any, sizes: PositionSizes) -> Self:
        return cls(sizes.width)

    def check(self, sizes: PositionSizes) -> None:
        check_size("dim", self, self.dim, sizes.width)

    def add(self, items: Items, start: int = 0) -> Items:
        return items + self._rows(start, start + items.shape[1]).to(items.dtype)

    def matrix(self, length: int, start: int = 0) -> Float[Tensor, "length dim"]:
        return sinusoids(start, length, self.dim)

    def extra_repr(self) -> str:
        return str(self.dim)

    def form(self) -> SinusoidsForm:
        expected = sinusoids(0, len(self._table), self.dim)
        if self._table.dtype != expected.dtype or not torch.equal(self._table, expected):
            raise NoFormError(self, "has a table that differs from its sines and cosines")
        return SinusoidsForm(self.dim)

    def _rows(self, start: int, end: int) -> Tensor:
        if torch.compiler.is_exporting():  # a table in the graph would limit the length
            return sinusoids(start, end - start, self.dim).to(self._table)
        if end > self._table.shape[0]:
            self._table = sinusoids(0, 2 * end, self.dim).to(self._table)
        return self._table[start:end]
