"""A model that writes a grid, row by row: what is written next knows its row and its column.

    x_t = embed(y_{t-1}) + R[row of place t] + C[column of place t]        after the last place: + E

Rows and columns are learned, so what lies above is found in the same way at every place; the core's own positions,
which the text has too, only tell how far the sequence is.

Source: ramesh2021, section 2.2 (a row and a column vector for each code of an image).
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.models.cores.core import Core, State
from regard.models.model import Model
from regard.models.reads.tokens import TokenReader
from regard.models.writes.tokens import TokenWriter

_SCALE = 0.5
"""Standard deviation of fresh row and column vectors: together half the variance of embeddings."""


class Places(nn.Module):
    """A vector for each place of a grid, and for what follows the last."""

    def __init__(self, grid: tuple[int, int], dim: int):
        super().__init__()
        self.rows, self.columns = (nn.Parameter(_SCALE * torch.randn(size, dim)) for size in grid)
        self.end = nn.Parameter(_SCALE * torch.randn(1, dim))

    def forward(self) -> Float[Tensor, "places dim"]:
        """Row by row, the end last."""
        return torch.cat(((self.rows[:, None] + self.columns).flatten(0, 1), self.end))


@dataclass(frozen=True, eq=False)
class GridState:
    """What the core knows, and which place is next."""

    core: State
    place: int = 0

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """Those rows."""
        return replace(self, core=self.core.select(index))

    def reorder(self, index: Int[Tensor, " rows"]) -> Self:
        """Those rows of what was written."""
        return replace(self, core=self.core.reorder(index))


class GridModel(Model):
    """A model whose targets are a grid of tokens, row by row."""

    def __init__(self, reads: TokenReader, core: Core, writes: TokenWriter, grid: tuple[int, int]):
        super().__init__(reads, core, writes)
        self.places = Places(grid, core.width)

    def hidden(self, source: Padded, target: Padded) -> Float[Tensor, "batch steps dim"]:
        """The core's answer to the shifted targets, which know their places."""
        items = self.writes.shifted(target)
        return self.core(items + self.places()[: items.shape[1]], self.start(source).core)

    def start(self, source: Padded) -> GridState:
        """Read the source; the state before the first place."""
        return GridState(self.core.start(self.reads(source)))

    def step(self, tokens: Int[Tensor, " rows"], state: GridState) -> tuple[Float[Tensor, "rows vocab"], GridState]:
        """Scores of the next place after one more token a row, and the state that has it."""
        items = self.writes.embed(tokens) + self.places()[state.place]
        hidden, core = self.core.step(items, state.core)
        return self.writes.logits(hidden), GridState(core, state.place + 1)
