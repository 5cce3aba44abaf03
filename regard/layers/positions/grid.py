"""Positional encoding of a grid of target tokens, row by row: learned vectors of rows and columns.

    x_t = embed(y_{t-1}) + R[row of cell t] + C[column of cell t]        after the last cell: + E

Source: ramesh2021, section 2.2 (a row and a column vector for each code of an image).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.layers.positions.base import LearnedVectors

_SCALE = 0.5
"""Initial standard deviation of row and column vectors."""


class GridPositions(LearnedVectors):
    """Positional encoding of the cells of a grid and of the end symbol, for a TokenWriter."""

    def __init__(self, grid: tuple[int, int], dim: int):
        super().__init__()
        self.rows, self.columns = (nn.Parameter(_SCALE * torch.randn(size, dim)) for size in grid)
        self.end = nn.Parameter(_SCALE * torch.randn(1, dim))

    def vectors(self) -> Float[Tensor, "positions dim"]:
        return torch.cat(((self.rows[:, None] + self.columns).flatten(0, 1), self.end))

    def extra_repr(self) -> str:
        return f"({len(self.rows)}, {len(self.columns)}), {self.rows.shape[1]}"
