"""Autoregressive model of a grid of tokens, row by row, with positional encodings of rows and columns.

    x_t = embed(y_{t-1}) + R[row of cell t] + C[column of cell t]        after the last cell: + E

The row and column vectors are learned, so that attention to the cell above is the same function at every cell; the
positions of the core encode only the index in the sequence.

Source: ramesh2021, section 2.2 (a row and a column vector for each code of an image).
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.models.cores.core import Core, CoreState
from regard.models.model import Model
from regard.models.readers.tokens import TokenReader
from regard.models.writers.tokens import TokenWriter

_SCALE = 0.5
"""Initial standard deviation of row and column vectors: together half the variance of embeddings."""


class GridPositions(nn.Module):
    """Positional encoding of the cells of a grid and of the end symbol."""

    def __init__(self, grid: tuple[int, int], dim: int):
        super().__init__()
        self.rows, self.columns = (nn.Parameter(_SCALE * torch.randn(size, dim)) for size in grid)
        self.end = nn.Parameter(_SCALE * torch.randn(1, dim))

    def forward(self) -> Float[Tensor, "positions dim"]:
        """Return the vectors of all cells, row by row, and of the end symbol last."""
        return torch.cat(((self.rows[:, None] + self.columns).flatten(0, 1), self.end))


@dataclass(frozen=True, eq=False)
class GridState:
    """State of the core, and the index of the next cell."""

    core: CoreState
    position: int = 0

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """Return these rows of every tensor."""
        return replace(self, core=self.core.select(index))

    def reorder(self, index: Int[Tensor, " rows"]) -> Self:
        """Return these rows of the decoder's own state."""
        return replace(self, core=self.core.reorder(index))


class GridModel(Model):
    """Encoder-decoder model whose targets are a grid of tokens, row by row."""

    def __init__(self, reads: TokenReader, core: Core, writes: TokenWriter, grid: tuple[int, int]):
        super().__init__(reads, core, writes)
        self.positions = GridPositions(grid, core.width)

    def hidden(self, source: Padded, target: Padded) -> Float[Tensor, "batch steps dim"]:
        """Return the hidden states of the decoder for the shifted targets with their grid positions."""
        items = self.writes.embed_shifted(target)
        return self.core(items + self.positions()[: items.shape[1]], self.start(source).core)

    def start(self, source: Padded) -> GridState:
        """Encode the source; return the state before the first cell."""
        return GridState(self.core.start(self.reads(source)))

    def step(self, tokens: Int[Tensor, " rows"], state: GridState) -> tuple[Float[Tensor, "rows vocab"], GridState]:
        """Return the logits of the next cell after one more token per row, and the next state."""
        items = self.writes.embed(tokens) + self.positions()[state.position]
        hidden, core = self.core.step(items, state.core)
        return self.writes.logits(hidden), GridState(core, state.position + 1)
