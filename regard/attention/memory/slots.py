"""Base class of key-value caches of fixed size: slots, of which some are filled."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.axes import is_inspectable
from regard.attention.masks import Mask
from regard.attention.memory.base import (
    KeyValueCache,
    NewKeys,
    NewValues,
    check_new_pairs,
    select_pairs,
)
from regard.attention.scores import Score
from regard.attention.scores.base import map_all


@dataclass(frozen=True, eq=False)
class FixedSizeCache(KeyValueCache):
    """Base class of memories of a fixed size: slots that are written in place."""

    key_slots: Float[Tensor, "... slot key_dim"]
    value_slots: Float[Tensor, "... slot value_dim"]
    length: Int[Tensor, ""]
    """Number of pairs written so far; a tensor, for compiled loops."""
    mask: Mask | None
    mapped_by: Score | None = None

    @abstractmethod
    def _slots_of_next(self, num_new: int) -> Int[Tensor, " new"]:
        """Return the slots of the next pairs. Raises ValueError if they do not fit."""

    def _map_keys(self, score: Score) -> Self:
        keys = map_all(score, "map_keys", self.key_slots)
        empty = torch.arange(keys.shape[-2], device=keys.device) >= self.length
        # Masked NaN would make a read NaN.
        return replace(self, key_slots=keys.masked_fill(empty[:, None], 0.0), mapped_by=score)

    def extend(self, keys: NewKeys, values: NewValues) -> Self:
        """Append new pairs in place into the slots: the old object must not be extended again.

        Keys must be mapped as the present ones are.
        Raises: ValueError if shapes or devices differ from those of the present pairs, if the
                capacity is exceeded (in a compiled loop, where the length is unknown, the write
                fails instead), or if gradients are required; TypeError if dtypes differ.
        """
        check_new_pairs(self.key_slots, self.value_slots, keys, values)
        if torch.is_grad_enabled() and any(
            x.requires_grad for x in (keys, values, self.key_slots, self.value_slots)
        ):
            raise ValueError(f"a {type(self).__name__} supports no gradients; use torch.no_grad")
        num_new = keys.shape[-2]
        slots = self._slots_of_next(num_new)
        self.key_slots.index_copy_(-2, slots, keys)
        self.value_slots.index_copy_(-2, slots, values)
        return replace(self, length=self.length + num_new)

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        keys, values = (select_pairs(x, index) for x in (self.key_slots, self.value_slots))
        mask = None if self.mask is None else self.mask.select(index)
        return replace(self, key_slots=keys, value_slots=values, mask=mask)

    def crop(self, size: int) -> Self:
        if size < 0 or (is_inspectable(self.length) and size > int(self.length)):
            raise ValueError(f"size must be between 0 and {int(self.length)}, got {size}")
        return replace(self, length=torch.full_like(self.length, size))


def empty_slots(
    leading: Sequence[int],
    capacity: int,
    sizes: tuple[int, int | None],
    dtype: torch.dtype | None,
    device: torch.device | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate keys, values and the length; zeros, as masked NaN would make a read NaN."""
    key_dim, value_dim = sizes[0], sizes[0] if sizes[1] is None else sizes[1]
    keys = torch.zeros(*leading, capacity, key_dim, dtype=dtype, device=device)
    values = torch.zeros(*leading, capacity, value_dim, dtype=dtype, device=device)
    return keys, values, torch.zeros((), dtype=torch.int64, device=device)
