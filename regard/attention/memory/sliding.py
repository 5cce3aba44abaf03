"""Key-value cache of the last pairs, for sliding-window attention: its memory is bounded.

Reads equal those of a Memory of all pairs under a mask of the same window. For compiled loops, use
RingMemory. Source: beltagy2020, section 3.1.
"""

from dataclasses import dataclass, replace
from typing import Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.axes import check_integer
from regard.attention.masks import FilledSlots, Mask
from regard.attention.memory.base import KeyValueCache, NewKeys, NewValues, check_can_grow
from regard.attention.memory.growing import Memory
from regard.attention.positions import Positions
from regard.attention.scores import Score


def keep_last(memory: KeyValueCache, window: int) -> KeyValueCache:
    """Return the cache with its last `window` pairs only. Raises: TypeError for another cache."""
    if isinstance(memory, SlidingMemory):
        return replace(memory, window=min(window, memory.window))
    if isinstance(memory, Memory):
        return SlidingMemory.of(memory, window=window)
    raise TypeError(f"`memory` must be a Memory or SlidingMemory, got {type(memory).__name__}")


@final
@dataclass(frozen=True, eq=False)
class SlidingMemory(KeyValueCache):
    """Key-value cache of the last pairs: a query at position i attends to pairs p > i - window.

    After `extend` by m pairs, reads use the last window + m - 1 pairs, which is what m queries
    need. Older pairs are discarded, though not at every step: up to `window` extra pairs are kept
    to avoid copying the others. Immutable, as Memory is. Create it by `of`.
    Raises: ValueError if a read needs discarded pairs.
    """

    pairs: Memory
    """The last pairs, at least those that reads use."""
    window: int
    num_visible: int
    """Number of pairs that reads use."""
    length: int

    @classmethod
    def of(cls, memory: Memory, *, window: int) -> Self:
        """Create it from the pairs of a memory without a mask."""
        check_can_grow(memory)
        check_integer("window", window, 1)
        return cls(memory, window, memory.size, memory.size)

    @property
    def keys(self) -> Float[Tensor, "... key key_dim"]:
        return self.pairs.keys[..., self.pairs.size - self.num_visible :, :]

    @property
    def values(self) -> Float[Tensor, "... key value_dim"]:
        return self.pairs.values[..., self.pairs.size - self.num_visible :, :]

    @property
    def size(self) -> int:
        return self.num_visible

    @property
    def mask(self) -> Mask | None:
        return FilledSlots(self.window) if self.num_visible > self.window else None

    @property
    def mapped_by(self) -> Score | None:
        return self.pairs.mapped_by

    def positions(self, num_queries: int) -> Positions:
        """Return positions among all pairs. Raises: ValueError if queries need discarded ones."""
        num_discarded = self.length - self.num_visible
        first_needed = self.length - num_queries - self.window + 1
        if num_discarded > max(0, first_needed):
            reason = f"those before {num_discarded} were discarded"
            raise ValueError(f"queries need the pairs from {max(0, first_needed)} on, but {reason}")
        device = self.pairs.keys.device
        positions = Positions(num_queries, self.num_visible, device)
        if not num_discarded:
            return positions
        key_positions = torch.arange(num_discarded, self.length, device=device)
        return positions._replace(start=self.length - num_queries, key_positions=key_positions)

    def _map_keys(self, score: Score) -> Self:
        return replace(self, pairs=self.pairs.map_keys_with(score))

    def extend(self, keys: NewKeys, values: NewValues) -> Self:
        num_old, num_new = min(self.num_visible, self.window - 1), keys.shape[-2]
        pairs = self.pairs
        if torch.is_grad_enabled() or pairs.size > 2 * self.window:
            pairs = _last(pairs, num_old)
        return replace(
            self,
            pairs=pairs.extend(keys, values),
            num_visible=num_old + num_new,
            length=self.length + num_new,
        )

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        return replace(self, pairs=_last(self.pairs, self.num_visible).select(index))

    def crop(self, size: int) -> Self:
        num_discarded = self.length - self.num_visible
        if not num_discarded <= size <= self.length:
            sizes = f"{num_discarded} (earlier pairs were discarded) and {self.length}"
            raise ValueError(f"size must be between {sizes}, got {size}")
        pairs = self.pairs.crop(self.pairs.size - self.length + size)
        return replace(self, pairs=pairs, num_visible=size - num_discarded, length=size)


def _last(memory: Memory, size: int) -> Memory:
    if size == memory.size:
        return memory
    first = memory.size - size
    return replace(memory, keys=memory.keys[..., first:, :], values=memory.values[..., first:, :])
