"""A memory of the last pairs only: what it costs is bounded by a window, however long the text grows.

    a query at place i sees the pairs i - window < p <= i         (with a causal mask; without, those behind it too)

It reads as a whole Memory does under the mask of the same window. For loops that are compiled there is RingMemory.

Source: beltagy2020, section 3.1.
"""

from dataclasses import dataclass, replace
from typing import Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.masks import Mask
from regard.attention.memories import Held
from regard.attention.memory import Memory, Store, check_can_grow
from regard.attention.places import Places
from regard.attention.scores import Score
from regard.attention.sizes import check_whole


@final
@dataclass(frozen=True, eq=False)
class SlidingMemory(Store):
    """The last pairs, for a window: a query at place i sees the pairs p > i - window.

    After `extend` by m pairs its reads look at the last window + m - 1 of all, which is what m queries need. Older
    ones are let go of, though not at every step: as many as the window may lie about, which saves copying the rest.
    A value, as a Memory is. Made by `of`.
    Raises: ValueError at a read that asks for pairs that were let go of.
    """

    pairs: Memory
    """The last of all pairs, at least those that reads look at."""
    window: int
    num_held: int
    """How many of them reads look at."""
    length: int
    """Pairs taken in so far."""

    @classmethod
    def of(cls, memory: Memory, *, window: int) -> Self:
        """The pairs of a memory. Raises ValueError if it has a mask, which would not know of new keys."""
        check_can_grow(memory)
        check_whole("window", window, 1)
        return cls(memory, window, memory.size, memory.size)

    @property
    def keys(self) -> Float[Tensor, "... key key_dim"]:
        """Of the pairs that reads look at."""
        return self.pairs.keys[..., self.pairs.size - self.num_held :, :]

    @property
    def values(self) -> Float[Tensor, "... key value_dim"]:
        """Of the pairs that reads look at."""
        return self.pairs.values[..., self.pairs.size - self.num_held :, :]

    @property
    def size(self) -> int:
        """Number of keys that reads look at."""
        return self.num_held

    @property
    def mask(self) -> Mask | None:
        """The window; None while it has room for all that is held."""
        return Held(self.window) if self.num_held > self.window else None

    @property
    def mapped_by(self) -> Score | None:
        """The score whose `map_keys` the keys have been through; None if they are as given."""
        return self.pairs.mapped_by

    def places(self, num_queries: int) -> Places:
        """The last query stands at the last key; places count from the first pair that was taken in.

        Raises: ValueError if there are more queries than pairs were kept for.
        """
        gone = self.length - self.num_held
        first_seen = self.length - num_queries - self.window + 1
        if gone > max(0, first_seen):
            raise ValueError(
                f"{num_queries} queries with a window of {self.window} need the pairs from {max(0, first_seen)} on, "
                f"but those before {gone} were let go of: extend by as many pairs as there will be queries"
            )
        device = self.pairs.keys.device
        if not gone:
            return Places(num_queries, self.num_held, device)
        held = torch.arange(gone, self.length, device=device)
        return Places(num_queries, self.num_held, device, self.length - num_queries, held)

    def map_keys_with(self, score: Score) -> Self:
        """The same memory with keys mapped once, for many reads with this score."""
        return self if self.mapped_by is score else replace(self, pairs=self.pairs.map_keys_with(score))

    def extend(self, keys: Float[Tensor, "... new key_dim"], values: Float[Tensor, "... new value_dim"]) -> Self:
        """This memory followed by new pairs. Keys must be mapped as the ones already here are.

        Raises: as `Memory.extend` does.
        """
        kept, num_new = min(self.num_held, self.window - 1), keys.shape[-2]
        pairs = self.pairs
        if torch.is_grad_enabled() or pairs.size > 2 * self.window:
            pairs = _last(pairs, kept)
        return replace(self, pairs=pairs.extend(keys, values), num_held=kept + num_new, length=self.length + num_new)

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """The rows `index` of the first axis, in that order (beams, finished sentences)."""
        return replace(self, pairs=_last(self.pairs, self.num_held).select(index))

    def crop(self, size: int) -> Self:
        """As it was after its first `size` pairs, less those that were let go of since: reads may ask for these."""
        gone = self.length - self.num_held
        if not gone <= size <= self.length:
            raise ValueError(f"size must be between {gone} (those before were let go of) and {self.length}, got {size}")
        pairs = self.pairs.crop(self.pairs.size - self.length + size)
        return replace(self, pairs=pairs, num_held=size - gone, length=size)


def _last(memory: Memory, size: int) -> Memory:
    """The last pairs of a memory, as views."""
    if size == memory.size:
        return memory
    first = memory.size - size
    return replace(memory, keys=memory.keys[..., first:, :], values=memory.values[..., first:, :])
