"""Places: where the queries and the keys of a read stand on one line, for masks and biases that go by position.

    place(query i of m) = start + i        start = n - m unless told: the last query stands at the last key
    place(key j of n)   = j                unless told (a ring that overwrites its oldest keys has another order)

A mask or a bias is a function of places, so that one query of a decoding, a tile of a long read, a memory of fixed
size that is only partly filled and the whole read at once all get the same answer.
"""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor


class Places(NamedTuple):
    """The queries `rows` of a read of `num_queries` by `num_keys`."""

    num_queries: int
    """Queries of the whole read."""
    num_keys: int
    """Keys of the whole read."""
    device: torch.device
    start: int | Tensor | None = None
    """Place of the first query; None: num_keys - num_queries. A tensor has no axes (compiled loops)."""
    key_places: Tensor | None = None
    """Place of each key, (key,); None: 0 .. num_keys - 1. Negative: not filled yet."""
    rows: tuple[int, int] | None = None
    """First and past-the-last query of a tile; None: all."""

    @property
    def num_rows(self) -> int:
        """Queries of the tile."""
        return self.num_queries if self.rows is None else self.rows[1] - self.rows[0]

    @property
    def aligned(self) -> bool:
        """Nothing was told: the last query stands at the last key, and keys in their order."""
        return self.start is None and self.key_places is None

    @property
    def first(self) -> int | Tensor:
        """Place of the first query of the tile."""
        start = self.num_keys - self.num_queries if self.start is None else self.start
        return start if self.rows is None else start + self.rows[0]

    @property
    def query(self) -> Int[Tensor, "query 1"]:
        """Place of each query of the tile, as a column."""
        return (torch.arange(self.num_rows, device=self.device) + self.first).unsqueeze(-1)

    @property
    def key(self) -> Int[Tensor, " key"]:
        """Place of each key, as a row."""
        return torch.arange(self.num_keys, device=self.device) if self.key_places is None else self.key_places

    def tile(self, first: int, last: int) -> "Places":
        """The queries first .. last - 1 of the read alone."""
        return self._replace(rows=(first, last))

    def rows_of(self, tensor: Tensor) -> Tensor:
        """The tile's rows of a tensor (..., query or 1, key or 1) that belongs to the whole read."""
        if self.rows is None or tensor.shape[-2] == 1:
            return tensor
        return tensor[..., self.rows[0] : self.rows[1], :]
