"""Static key-value cache: preallocated slots that are filled in order, with a fixed capacity."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.axes import check_integer, is_inspectable
from regard.attention.masks import FilledSlots, Mask, intersect
from regard.attention.memory.base import check_can_grow
from regard.attention.memory.growing import Memory
from regard.attention.memory.slots import FixedSizeCache, empty_slots
from regard.attention.positions import Positions


@final
@dataclass(frozen=True, eq=False)
class StaticMemory(FixedSizeCache):
    """Key-value cache of at most `capacity` pairs, (..., slot, dim), masked from `length` on.

    Create it by `empty` or `of`. A read processes all slots, filled or not, unless `within` limits
    them. Shared: `extend`, `crop` and `within` share the slots of the old object, `select` copies.
    """

    reach: int | None = None
    """Number of slots that reads process; None: all."""

    @classmethod
    def empty(
        cls,
        leading: Sequence[int],
        *,
        capacity: int,
        key_dim: int,
        value_dim: int | None = None,
        mask: Mask | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
    ) -> Self:
        """Create an empty memory with leading axes such as (batch, [head]).

        value_dim: default key_dim. mask: over all slots, combined with the mask of filled slots.
        """
        check_integer("capacity", capacity, 1)
        slots = empty_slots(leading, capacity, (key_dim, value_dim), dtype, device)
        return cls(*slots, intersect(mask, FilledSlots()))

    @classmethod
    def of(cls, memory: Memory, *, capacity: int, mask: Mask | None = None) -> Self:
        """Copy the pairs of a memory into slots with space for more; the mask is over all slots.

        Raises: ValueError if capacity < 1 or less than the number of pairs, or if the memory has a
                mask, which would not cover new keys.
        """
        check_can_grow(memory)
        check_integer("capacity", capacity, max(1, memory.size))
        more = (0, 0, 0, capacity - memory.size)  # of slots, after the pairs
        keys, values = pad(memory.keys.detach(), more), pad(memory.values.detach(), more)
        length = torch.full((), memory.size, device=keys.device)
        return cls(keys, values, length, intersect(mask, FilledSlots()), memory.mapped_by)

    @property
    def keys(self) -> Float[Tensor, "... key key_dim"]:
        return self.key_slots if self.reach is None else self.key_slots[..., : self.reach, :]

    @property
    def values(self) -> Float[Tensor, "... key value_dim"]:
        return self.value_slots if self.reach is None else self.value_slots[..., : self.reach, :]

    @property
    def capacity(self) -> int:
        return self.key_slots.shape[-2]

    def positions(self, num_queries: int) -> Positions:
        start = self.length - num_queries
        return Positions(num_queries, self.size, self.length.device, start)

    def within(self, reach: int | None) -> Self:
        """Limit reads to the first `reach` slots; None: all slots.

        The caller must ensure that no pair is in a later slot. Loops that use 64, 128, 256, ...
        compile a few times and process at most twice the filled slots; loops that are not compiled
        may change `reach` at every step. Raises: ValueError if there are fewer slots, or if the
        length is known and larger.
        """
        if reach is not None and not 1 <= reach <= self.capacity:
            raise ValueError(f"reach must be from 1 to the capacity {self.capacity}, got {reach}")
        if reach is not None and is_inspectable(self.length) and int(self.length) > reach:
            raise ValueError(f"reach must be at least {int(self.length)}, got {reach}")
        return replace(self, reach=reach)

    def _slots_of_next(self, num_new: int) -> Int[Tensor, " new"]:
        length = int(self.length) if is_inspectable(self.length) else 0
        if length + num_new > self.capacity:
            pairs = f"got {num_new} new pairs after {length}"
            raise ValueError(f"pairs must fit into the capacity {self.capacity}, {pairs}")
        return torch.arange(num_new, device=self.length.device) + self.length
