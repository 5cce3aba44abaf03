"""Ring-buffer key-value cache: slots for the last pairs; each new pair overwrites the oldest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.axes import check_integer
from regard.attention.masks import FilledSlots, Mask, intersect
from regard.attention.memory.base import check_can_grow
from regard.attention.memory.growing import Memory
from regard.attention.memory.slots import FixedSizeCache, empty_slots
from regard.attention.positions import Positions


@final
@dataclass(frozen=True, eq=False)
class RingMemory(FixedSizeCache):
    """Ring-buffer key-value cache for sliding-window attention: new pairs overwrite the oldest.

    A query at position i attends to pairs p > i - window. At most `most` pairs are added, and at
    most as many queries read, at a time; the first of them needs C = window + most - 1 slots.
    Pair p is in slot p mod C. Create it by `empty` or `of`. Shared: `extend` and `crop` share the
    slots of the old object, which loses the overwritten pairs; `select` copies.
    Source: beltagy2020, section 3.1 (sliding window).
    """

    window: int = 1

    @classmethod
    def empty(
        cls,
        leading: Sequence[int],
        *,
        window: int,
        key_dim: int,
        most: int = 1,
        value_dim: int | None = None,
        mask: Mask | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Self:
        """Create an empty memory with leading axes such as (batch, [head])."""
        for name, number in (("window", window), ("most", most)):
            check_integer(name, number, 1)
        slots = empty_slots(leading, window + most - 1, (key_dim, value_dim), dtype, device)
        return cls(*slots, intersect(mask, FilledSlots(window)), window=window)

    @classmethod
    def of(cls, memory: Memory, *, window: int, most: int = 1) -> Self:
        """Copy the last pairs of a memory without a mask into slots."""
        check_can_grow(memory)
        for name, number in (("window", window), ("most", most)):
            check_integer(name, number, 1)
        count, capacity = memory.size, window + most - 1
        kept = torch.arange(max(0, count - capacity), count, device=memory.keys.device)

        def to_slots(old: Tensor) -> Tensor:
            empty = old.new_zeros(*old.shape[:-2], capacity, old.shape[-1])
            return empty.index_copy_(-2, kept % capacity, old.detach().index_select(-2, kept))

        keys, values = to_slots(memory.keys), to_slots(memory.values)
        length = torch.full((), count, device=kept.device)
        return cls(keys, values, length, FilledSlots(window), memory.mapped_by, window)

    @property
    def keys(self) -> Float[Tensor, "... key key_dim"]:
        return self.key_slots

    @property
    def values(self) -> Float[Tensor, "... key value_dim"]:
        return self.value_slots

    @property
    def most(self) -> int:
        """Largest number of pairs that may be added, and of queries that may read, at a time."""
        return self.size - self.window + 1

    def positions(self, num_queries: int) -> Positions:
        """Return positions: slot s has the last pair p < n with p = s mod C, or p < 0.

        Raises: ValueError for more than `most` queries: the pairs of the first ones are
                overwritten.
        """
        if num_queries > self.most:
            raise ValueError(
                f"a RingMemory is read by at most {self.most} queries, got {num_queries}"
            )
        device, last = self.length.device, self.length - 1
        key_positions = last - (last - torch.arange(self.size, device=device)) % self.size
        return Positions(num_queries, self.size, device, self.length - num_queries, key_positions)

    def crop(self, size: int) -> Self:
        """Return the memory of its first `size` pairs, in the same slots. Synchronizes the device.

        Raises: ValueError if pairs before `size` were overwritten.
        """
        length = int(self.length)
        if length > max(size, self.size):
            raise ValueError(f"size must be {length}: pairs were overwritten, got {size}")
        return super().crop(size)

    def _slots_of_next(self, num_new: int) -> Int[Tensor, " new"]:
        if num_new > self.most:
            raise ValueError(f"a RingMemory takes at most {self.most} new pairs, got {num_new}")
        return (torch.arange(num_new, device=self.length.device) + self.length) % self.size
