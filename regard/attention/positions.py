"""Positions of the queries and keys of a read in one sequence, for masks and biases.

    position(query i of m) = start + i    default start = n - m: the last query is at the last key
    position(key j of n)   = j            by default (a ring buffer has another order)

Masks and biases are functions of positions, so that a decoding step, a tile of a long read, a
memory of fixed size that is only partly filled and the whole read at once agree.
"""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor


class Positions(NamedTuple):
    """Positions of a read of `num_queries` by `num_keys`, or of its tile `rows`."""

    num_queries: int
    num_keys: int
    device: torch.device
    start: int | Tensor | None = None
    """Position of the first query, without axes; None: num_keys - num_queries."""
    key_positions: Tensor | None = None
    """Position of each key, (key,); None: 0 .. num_keys - 1. Negative: an empty slot."""
    rows: tuple[int, int] | None = None
    """Range first <= i < last of the queries of a tile; None: all."""

    @property
    def num_rows(self) -> int:
        """Number of queries of the tile."""
        return self.num_queries if self.rows is None else self.rows[1] - self.rows[0]

    @property
    def is_aligned(self) -> bool:
        """True for default positions: the last query is at the last key, and keys are in order."""
        return self.start is None and self.key_positions is None

    @property
    def first(self) -> int | Tensor:
        """Position of the first query of the tile."""
        start = self.num_keys - self.num_queries if self.start is None else self.start
        return start if self.rows is None else start + self.rows[0]

    @property
    def query(self) -> Int[Tensor, "query 1"]:
        """Position of each query of the tile, as a column."""
        return (torch.arange(self.num_rows, device=self.device) + self.first).unsqueeze(-1)

    @property
    def key(self) -> Int[Tensor, " key"]:
        """Position of each key, as a row."""
        if self.key_positions is not None:
            return self.key_positions
        return torch.arange(self.num_keys, device=self.device)

    def tile(self, first: int, last: int) -> "Positions":
        """Return the positions of queries first .. last - 1 only."""
        return self._replace(rows=(first, last))

    def rows_of(self, tensor: Tensor) -> Tensor:
        """Return the rows of this tile from a tensor (..., query or 1, key or 1)."""
        if self.rows is None or tensor.shape[-2] == 1:
            return tensor
        return tensor[..., self.rows[0] : self.rows[1], :]
