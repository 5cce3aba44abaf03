"""Memories of a fixed size, for loops that compile once and run at every step.

    StaticMemory     at most `capacity` pairs, pair p in slot p
    RingMemory       the last pairs: a query at place i sees p > i - window; pair p in slot p mod C

A static memory is written in place, as compiled loops need it: `extend` uses the old value up. It may still be read,
but not extended again: its next pair and that of the longer one have the same slot. Rows all have one length; for
prompts of unequal lengths put padding before them, and hide it by a mask over all slots: `~padding(num_padding)`.

Source: lectures, A (attention as reading a memory). The window: beltagy2020, section 3.1, for a causal read.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.axes import Rule, can_look_at, look_up
from regard.attention.masks import Interval, Mask
from regard.attention.memory import Memory, Store, check_can_grow, check_new_pairs, check_unmapped
from regard.attention.places import Places
from regard.attention.scores import Score
from regard.attention.sizes import check_whole


@final
class Held(Mask):
    """Every query sees the keys that are filled, up to the place of the last query; with a window, the last ones.

    0 <= place(key) <= place(last query), and place(key) > place(query) - window.
    """

    def __init__(self, window: int | None = None):
        self.window = window

    def see(self, places: Places) -> Bool[Tensor, "rows key"]:
        """One row for all queries, unless there is a window."""
        key = places.key
        seen = (key < _end(places)).unsqueeze(0)
        if places.key_places is not None:
            seen = seen & (key >= 0)
        return seen if self.window is None else seen & (key > places.query - self.window)

    def interval(self, places: Places) -> Interval | None:
        """max(0, place - window + 1) <= j < end."""
        if places.key_places is not None:
            return None
        query = places.query
        first = torch.zeros_like(query) if self.window is None else (query - self.window + 1).clamp(min=0)
        return first, torch.zeros_like(query) + _end(places)

    def rule(self, places: Places) -> Rule:
        """j < end, unless there is a window or an order of keys."""
        if self.window is not None or places.key_places is not None:
            return look_up(self.see(places))
        end = _end(places)
        return lambda row, head, query, key: key < end

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """Every row has the same mask."""
        return self

    def may_have_closed_rows(self, places: Places) -> bool:
        """A query at a place from 0 on sees the key there."""
        if places.start is None:
            return places.num_queries > places.num_keys
        if isinstance(places.start, Tensor) and not can_look_at(places.start):
            return True
        return int(places.start) < 0

    def __repr__(self) -> str:
        return "held()" if self.window is None else f"held(window={self.window})"


def _end(places: Places) -> int | Tensor:
    """Past the place of the last query of the whole read."""
    return places.num_keys if places.start is None else places.start + places.num_queries


@dataclass(frozen=True, eq=False)
class _Slots(Store):
    """What memories of a fixed size share: slots that are written in place, and how many pairs were written."""

    key_slots: Float[Tensor, "... slot key_dim"]
    value_slots: Float[Tensor, "... slot value_dim"]
    length: Int[Tensor, ""]
    """Pairs taken in so far; a tensor, so that a compiled loop is the same at every step."""
    mask: Mask | None
    mapped_by: Score | None = None

    @abstractmethod
    def _slots_of_next(self, num_new: int) -> Int[Tensor, " new"]:
        """Slots of the next pairs. Raises ValueError if they do not fit."""

    def map_keys_with(self, score: Score) -> Self:
        """The same memory with the keys of all slots mapped once: cheapest while it is empty. Values are shared."""
        if self.mapped_by is score:
            return self
        check_unmapped(self)
        return replace(self, key_slots=score.map_keys(self.key_slots), mapped_by=score)

    def extend(self, keys: Float[Tensor, "... new key_dim"], values: Float[Tensor, "... new value_dim"]) -> Self:
        """This memory followed by new pairs, written into its own slots: the old value must not be extended again.

        Keys must be mapped as the ones already here are.
        Raises: ValueError if shapes or devices are not those of the pairs already here, if there is no room (where
                the length can be looked at: in a compiled loop writing fails), or if gradients are asked for;
                TypeError if dtypes are not.
        """
        check_new_pairs(self.key_slots, self.value_slots, keys, values)
        if torch.is_grad_enabled() and any(x.requires_grad for x in (keys, values, self.key_slots, self.value_slots)):
            raise ValueError(f"a {type(self).__name__} is written in place and keeps no gradients: see torch.no_grad")
        num_new = keys.shape[-2]
        slots = self._slots_of_next(num_new)
        self.key_slots.index_copy_(-2, slots, keys)
        self.value_slots.index_copy_(-2, slots, values)
        return replace(self, length=self.length + num_new)

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """The rows `index` of the first axis, in that order, in slots of their own."""
        return replace(
            self,
            key_slots=self.key_slots.index_select(0, index),
            value_slots=self.value_slots.index_select(0, index),
            mask=None if self.mask is None else self.mask.select(index),
        )

    def _cropped(self, size: int) -> Self:
        if size < 0 or (can_look_at(self.length) and size > int(self.length)):
            raise ValueError(f"size must be between 0 and {int(self.length)}, but is {size}")
        return replace(self, length=torch.full_like(self.length, size))


@final
@dataclass(frozen=True, eq=False)
class StaticMemory(_Slots):
    """At most `capacity` pairs in tensors (..., slot, dim) of a fixed size; slots beyond `length` are hidden.

    Made by `empty` or `of`. A read looks at all slots, filled or not, unless `within` says how many are enough.
    Shared: `extend`, `crop` and `within` share the slots of the old value, `select` does not.
    """

    reach: int | None = None
    """How many of the slots reads look at; None: all."""

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
        """No pair yet; leading axes as (batch, [head]); a mask is one over all slots. value_dim: default key_dim."""
        check_whole("capacity", capacity, 1)
        slots = _empty_slots(leading, capacity, (key_dim, value_dim), dtype, device)
        return cls(*slots, _with_held(mask, None))

    @classmethod
    def of(cls, memory: Memory, *, capacity: int, mask: Mask | None = None) -> Self:
        """The pairs of a memory, copied, with slots for more; a mask is one over all slots.

        Raises: ValueError if capacity < 1, or there are more pairs, or the memory has a mask, which would not know
                of new keys.
        """
        check_can_grow(memory)
        check_whole("capacity", capacity, 1)
        keys, values = memory.keys.detach(), memory.values.detach()
        sizes = keys.shape[-1], values.shape[-1]
        slots = _empty_slots(keys.shape[:-2], capacity, sizes, keys.dtype, keys.device)
        return cls(*slots, _with_held(mask, None), memory.mapped_by).extend(keys, values)

    @property
    def keys(self) -> Float[Tensor, "... key key_dim"]:
        """Of the slots that reads look at."""
        return self.key_slots if self.reach is None else self.key_slots[..., : self.reach, :]

    @property
    def values(self) -> Float[Tensor, "... key value_dim"]:
        """Of the slots that reads look at."""
        return self.value_slots if self.reach is None else self.value_slots[..., : self.reach, :]

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return self.key_slots.shape[-2]

    def places(self, num_queries: int) -> Places:
        """The last query stands at the last key that is filled."""
        start = self.length - num_queries
        return Places(num_queries, self.size, self.length.device, start)

    def within(self, reach: int | None) -> Self:
        """The same memory, of which reads look at the first `reach` slots; None: at all.

        It is for the caller to see that no pair lies beyond. Loops that go through 64, 128, 256, ... compile a few
        times and read no more than twice what is filled; loops that are not compiled may follow every step.
        Raises: ValueError if there are not so many slots, or if pairs beyond can be seen to be there.
        """
        if reach is not None and not 1 <= reach <= self.capacity:
            raise ValueError(f"reach must be between 1 and the capacity {self.capacity}, but is {reach}")
        if reach is not None and can_look_at(self.length) and int(self.length) > reach:
            raise ValueError(f"reach must be at least {int(self.length)}, the pairs that are here, but is {reach}")
        return replace(self, reach=reach)

    def crop(self, size: int) -> Self:
        """The first `size` pairs, in the same slots: extending these writes over the ones behind."""
        return self._cropped(size)

    def _slots_of_next(self, num_new: int) -> Int[Tensor, " new"]:
        if num_new > self.capacity or (can_look_at(self.length) and int(self.length) + num_new > self.capacity):
            raise ValueError(
                f"a memory of capacity {self.capacity} cannot take {num_new} more pairs"
                + (f" than its {int(self.length)}" if can_look_at(self.length) else "")
            )
        return torch.arange(num_new, device=self.length.device) + self.length


@final
@dataclass(frozen=True, eq=False)
class RingMemory(_Slots):
    """The last pairs, for a window, in a fixed number of slots: each new pair overwrites the oldest.

    A query at place i sees the pairs p > i - window. At most `most` pairs are taken in, and as many queries read, at
    once; C = window + most - 1 slots are what the first of these queries needs. Made by `empty`.
    Shared: `extend` and `crop` share the slots of the old value, `select` does not. After an extension the old value
    has lost what was overwritten.
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
        """No pair yet; leading axes as (batch, [head]); value_dim: default key_dim."""
        for name, number in (("window", window), ("most", most)):
            check_whole(name, number, 1)
        slots = _empty_slots(leading, window + most - 1, (key_dim, value_dim), dtype, device)
        return cls(*slots, _with_held(mask, window), window=window)

    @property
    def keys(self) -> Float[Tensor, "... key key_dim"]:
        """Of all slots."""
        return self.key_slots

    @property
    def values(self) -> Float[Tensor, "... key value_dim"]:
        """Of all slots."""
        return self.value_slots

    @property
    def most(self) -> int:
        """Pairs that may be taken in, and queries that may read, at once."""
        return self.size - self.window + 1

    def places(self, num_queries: int) -> Places:
        """The last query stands at the last key; slot s holds the last pair p < n with p = s mod C, or none (p < 0).

        Raises: ValueError for more than `most` queries: what the first of them should see is overwritten.
        """
        if num_queries > self.most:
            raise ValueError(f"at most {self.most} queries can read this ring at once, but there are {num_queries}")
        device, last = self.length.device, self.length - 1
        held = last - (last - torch.arange(self.size, device=device)) % self.size
        return Places(num_queries, self.size, device, self.length - num_queries, held)

    def crop(self, size: int) -> Self:
        """As it was after its first `size` pairs, in the same slots. Waits for the device to tell the length.

        Raises: ValueError if it has gone round: the pairs before those to be undone are overwritten.
        """
        length = int(self.length)
        if length > max(size, self.size):
            raise ValueError(f"a ring of {self.size} slots that took in {length} pairs cannot go back to {size}")
        return self._cropped(size)

    def _slots_of_next(self, num_new: int) -> Int[Tensor, " new"]:
        if num_new > self.most:
            raise ValueError(f"at most {self.most} pairs can be taken in at once, but there are {num_new}")
        return (torch.arange(num_new, device=self.length.device) + self.length) % self.size


def _with_held(mask: Mask | None, window: int | None) -> Mask:
    return Held(window) if mask is None else mask & Held(window)


def _empty_slots(
    leading: Sequence[int],
    capacity: int,
    sizes: tuple[int, int | None],
    dtype: torch.dtype | None,
    device: torch.device | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and the length. Zeros, not what memory holds: a hidden NaN would spoil a read all the same."""
    key_dim, value_dim = sizes[0], sizes[0] if sizes[1] is None else sizes[1]
    for name, dim in (("key_dim", key_dim), ("value_dim", value_dim)):
        check_whole(name, dim, 1)
    keys, values = (torch.zeros(*leading, capacity, dim, dtype=dtype, device=device) for dim in (key_dim, value_dim))
    return keys, values, torch.zeros((), dtype=torch.int64, device=device)
