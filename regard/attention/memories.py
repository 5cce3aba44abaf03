"""Key-value caches of a fixed size, for decoding loops that are compiled once for all steps.

    StaticMemory     at most `capacity` pairs; pair p is in slot p
    RingMemory       the last pairs: a query at position i attends to pairs p > i - window; pair p is in slot p mod C

A static memory is updated in place, as compiled loops require: after `extend`, the old object may still be read, but
must not be extended again, since its next pair would overwrite the same slot. All rows have the same length; pad
prompts of unequal lengths on the left, and hide the padding by a mask over all slots: `~padding(num_padding)`.

Source: lectures, A (attention as reading a memory). The window: beltagy2020, section 3.1, for a causal read.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.axes import Rule, is_inspectable, make_lookup
from regard.attention.masks import Interval, Mask
from regard.attention.memory import KeyValueCache, Memory, check_can_grow, check_new_pairs, check_unmapped
from regard.attention.places import Positions
from regard.attention.scores import Score
from regard.attention.sizes import check_integer


@final
class FilledSlots(Mask):
    """Valid-slot mask: every query attends to the filled slots, up to the last query; with a window, to the last ones.

    0 <= position(key) <= position(last query), and position(key) > position(query) - window.
    """

    def __init__(self, window: int | None = None):
        self.window = window

    def materialize(self, positions: Positions) -> Bool[Tensor, "rows key"]:
        """Return one row for all queries, unless there is a window."""
        key = positions.key
        allowed = (key < _end(positions)).unsqueeze(0)
        if positions.key_positions is not None:
            allowed = allowed & (key >= 0)
        return allowed if self.window is None else allowed & (key > positions.query - self.window)

    def interval(self, positions: Positions) -> Interval | None:
        """Return max(0, position - window + 1) <= j < end."""
        if positions.key_positions is not None:
            return None
        query = positions.query
        first = torch.zeros_like(query) if self.window is None else (query - self.window + 1).clamp(min=0)
        return first, torch.zeros_like(query) + _end(positions)

    def rule(self, positions: Positions) -> Rule:
        """Return the rule j < end; a table lookup if there is a window or keys are not in order."""
        if self.window is not None or positions.key_positions is not None:
            return make_lookup(self.materialize(positions))
        end = _end(positions)
        return lambda row, head, query, key: key < end

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """Return the mask itself: every row has the same."""
        return self

    def may_have_fully_masked_rows(self, positions: Positions) -> bool:
        """Return False if all positions are known to be at least 0: each query then attends to its own position."""
        if positions.start is None:
            return positions.num_queries > positions.num_keys
        if isinstance(positions.start, Tensor) and not is_inspectable(positions.start):
            return True
        return int(positions.start) < 0

    def __repr__(self) -> str:
        return "filled_slots()" if self.window is None else f"filled_slots(window={self.window})"


def _end(positions: Positions) -> int | Tensor:
    """Return the position after the last query of the whole read."""
    return positions.num_keys if positions.start is None else positions.start + positions.num_queries


@dataclass(frozen=True, eq=False)
class _FixedSizeCache(KeyValueCache):
    """Base class of memories of a fixed size: slots that are written in place, and the number of written pairs."""

    key_slots: Float[Tensor, "... slot key_dim"]
    value_slots: Float[Tensor, "... slot value_dim"]
    length: Int[Tensor, ""]
    """Number of pairs written so far; a tensor, so that a compiled loop is the same at every step."""
    mask: Mask | None
    mapped_by: Score | None = None

    @abstractmethod
    def _slots_of_next(self, num_new: int) -> Int[Tensor, " new"]:
        """Return the slots of the next pairs. Raises ValueError if they do not fit."""

    def map_keys_with(self, score: Score) -> Self:
        """Map the keys of all slots once, which is cheapest while the memory is empty. Values are shared."""
        if self.mapped_by is score:
            return self
        check_unmapped(self)
        return replace(self, key_slots=score.map_keys(self.key_slots), mapped_by=score)

    def extend(self, keys: Float[Tensor, "... new key_dim"], values: Float[Tensor, "... new value_dim"]) -> Self:
        """Append new pairs, written in place into the slots: the old object must not be extended again.

        Keys must be mapped as the present ones are.
        Raises: ValueError if shapes or devices differ from those of the present pairs, if the capacity is exceeded (in
                a compiled loop, where the length is unknown, the write fails instead), or if gradients are required;
                TypeError if dtypes differ.
        """
        check_new_pairs(self.key_slots, self.value_slots, keys, values)
        if torch.is_grad_enabled() and any(x.requires_grad for x in (keys, values, self.key_slots, self.value_slots)):
            raise ValueError(
                f"a {type(self).__name__} is written in place and supports no gradients; use torch.no_grad"
            )
        num_new = keys.shape[-2]
        slots = self._slots_of_next(num_new)
        self.key_slots.index_copy_(-2, slots, keys)
        self.value_slots.index_copy_(-2, slots, values)
        return replace(self, length=self.length + num_new)

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """Select the rows `index` of the first axis, in that order, as a copy."""
        return replace(
            self,
            key_slots=self.key_slots.index_select(0, index),
            value_slots=self.value_slots.index_select(0, index),
            mask=None if self.mask is None else self.mask.select(index),
        )

    def _crop(self, size: int) -> Self:
        if size < 0 or (is_inspectable(self.length) and size > int(self.length)):
            raise ValueError(f"size must be between 0 and {int(self.length)}, got {size}")
        return replace(self, length=torch.full_like(self.length, size))


@final
@dataclass(frozen=True, eq=False)
class StaticMemory(_FixedSizeCache):
    """Key-value cache of at most `capacity` pairs in tensors (..., slot, dim); slots from `length` on are masked.

    Create it by `empty` or `of`. A read processes all slots, filled or not, unless `within` limits them.
    Shared: `extend`, `crop` and `within` share the slots of the old object, `select` copies.
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
        slots = _empty_slots(leading, capacity, (key_dim, value_dim), dtype, device)
        return cls(*slots, _hide_empty_slots(mask, None))

    @classmethod
    def of(cls, memory: Memory, *, capacity: int, mask: Mask | None = None) -> Self:
        """Copy the pairs of a memory into slots with space for more; the mask is over all slots.

        Raises: ValueError if capacity < 1 or less than the number of pairs, or if the memory has a mask, which would
                not cover new keys.
        """
        check_can_grow(memory)
        check_integer("capacity", capacity, 1)
        keys, values = memory.keys.detach(), memory.values.detach()
        sizes = keys.shape[-1], values.shape[-1]
        slots = _empty_slots(keys.shape[:-2], capacity, sizes, keys.dtype, keys.device)
        return cls(*slots, _hide_empty_slots(mask, None), memory.mapped_by).extend(keys, values)

    @property
    def keys(self) -> Float[Tensor, "... key key_dim"]:
        """Contents of the slots that reads process."""
        return self.key_slots if self.reach is None else self.key_slots[..., : self.reach, :]

    @property
    def values(self) -> Float[Tensor, "... key value_dim"]:
        """Contents of the slots that reads process."""
        return self.value_slots if self.reach is None else self.value_slots[..., : self.reach, :]

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return self.key_slots.shape[-2]

    def positions(self, num_queries: int) -> Positions:
        """Return positions in which the last query is at the last filled slot."""
        start = self.length - num_queries
        return Positions(num_queries, self.size, self.length.device, start)

    def within(self, reach: int | None) -> Self:
        """Limit reads to the first `reach` slots; None: all slots.

        The caller must ensure that no pair is in a later slot. Loops that use 64, 128, 256, ... compile a few times and
        process at most twice the filled slots; loops that are not compiled may change `reach` at every step.
        Raises: ValueError if there are fewer slots, or if the length is known and larger.
        """
        if reach is not None and not 1 <= reach <= self.capacity:
            raise ValueError(f"reach must be between 1 and the capacity {self.capacity}, got {reach}")
        if reach is not None and is_inspectable(self.length) and int(self.length) > reach:
            raise ValueError(f"reach must be at least {int(self.length)}, the number of pairs, got {reach}")
        return replace(self, reach=reach)

    def crop(self, size: int) -> Self:
        """Keep the first `size` pairs, in the same slots: the next extension overwrites the others."""
        return self._crop(size)

    def _slots_of_next(self, num_new: int) -> Int[Tensor, " new"]:
        if num_new > self.capacity or (is_inspectable(self.length) and int(self.length) + num_new > self.capacity):
            raise ValueError(
                f"pairs must fit into the capacity {self.capacity}, got {num_new} new pairs"
                + (f" after {int(self.length)}" if is_inspectable(self.length) else "")
            )
        return torch.arange(num_new, device=self.length.device) + self.length


@final
@dataclass(frozen=True, eq=False)
class RingMemory(_FixedSizeCache):
    """Ring-buffer key-value cache for sliding-window attention: each new pair overwrites the oldest.

    A query at position i attends to pairs p > i - window. At most `most` pairs are added, and at most as many queries
    read, at a time; the first of them needs C = window + most - 1 slots. Create it by `empty`.
    Shared: `extend` and `crop` share the slots of the old object, `select` copies. After an extension, the old object
    has lost the overwritten pairs.
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
        """Create an empty memory with leading axes such as (batch, [head]); value_dim: default key_dim."""
        for name, number in (("window", window), ("most", most)):
            check_integer(name, number, 1)
        slots = _empty_slots(leading, window + most - 1, (key_dim, value_dim), dtype, device)
        return cls(*slots, _hide_empty_slots(mask, window), window=window)

    @property
    def keys(self) -> Float[Tensor, "... key key_dim"]:
        """Contents of all slots."""
        return self.key_slots

    @property
    def values(self) -> Float[Tensor, "... key value_dim"]:
        """Contents of all slots."""
        return self.value_slots

    @property
    def most(self) -> int:
        """Largest number of pairs that may be added, and of queries that may read, at a time."""
        return self.size - self.window + 1

    def positions(self, num_queries: int) -> Positions:
        """Return positions: the last query at the last key; slot s has the last pair p < n with p = s mod C, or p < 0.

        Raises: ValueError for more than `most` queries: the pairs of the first ones are overwritten.
        """
        if num_queries > self.most:
            raise ValueError(
                f"the number of queries must be at most {self.most} for this RingMemory, got {num_queries}"
            )
        device, last = self.length.device, self.length - 1
        key_positions = last - (last - torch.arange(self.size, device=device)) % self.size
        return Positions(num_queries, self.size, device, self.length - num_queries, key_positions)

    def crop(self, size: int) -> Self:
        """Return the memory as it was after its first `size` pairs, in the same slots. Synchronizes the device.

        Raises: ValueError if pairs before `size` were overwritten.
        """
        length = int(self.length)
        if length > max(size, self.size):
            raise ValueError(
                f"size must be {length} once a ring of {self.size} slots has overwritten pairs, got {size}"
            )
        return self._crop(size)

    def _slots_of_next(self, num_new: int) -> Int[Tensor, " new"]:
        if num_new > self.most:
            raise ValueError(f"the number of new pairs must be at most {self.most} for this RingMemory, got {num_new}")
        return (torch.arange(num_new, device=self.length.device) + self.length) % self.size


def _hide_empty_slots(mask: Mask | None, window: int | None) -> Mask:
    return FilledSlots(window) if mask is None else mask & FilledSlots(window)


def _empty_slots(
    leading: Sequence[int],
    capacity: int,
    sizes: tuple[int, int | None],
    dtype: torch.dtype | None,
    device: torch.device | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate keys, values and the length. Zeros, not empty tensors: even a masked NaN would make a read NaN."""
    key_dim, value_dim = sizes[0], sizes[0] if sizes[1] is None else sizes[1]
    for name, dim in (("key_dim", key_dim), ("value_dim", value_dim)):
        check_integer(name, dim, 1)
    keys, values = (torch.zeros(*leading, capacity, dim, dtype=dtype, device=device) for dim in (key_dim, value_dim))
    return keys, values, torch.zeros((), dtype=torch.int64, device=device)
