"""Interface of memories, the key-value pairs that queries read.

    (k_1, v_1) ... (k_n, v_n)      keys (..., n, d_k)      values (..., n, d_v)

A memory is immutable: it is an argument and a result, never stored on a module. For a fixed memory
(encoder states), `map_keys_with(score)` maps the keys once; for a growing one (the past of a
decoder), `extend` returns a longer memory.

Source: lectures, A.1 (attention as reading a memory).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NoReturn, Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.masks import Mask
from regard.attention.positions import Positions
from regard.attention.scores import Score
from regard.attention.scores.base import map_all

NewKeys = Float[Tensor, "... new key_dim"]
NewValues = Float[Tensor, "... new value_dim"]
KernelCache = dict[str, object]
"""Results that kernels computed from the keys of one memory, by name of the kernel."""


class KeyValueCache(ABC):
    """Interface of memories, for reads and decoders."""

    keys: Tensor
    """(..., key, key_dim)"""
    values: Tensor
    """(..., key, value_dim)"""
    mask: Mask | None
    """Mask over the keys, for all queries; combined with the mask of each read."""
    mapped_by: Score | None
    """Score whose `map_keys` was applied to the keys; None if they are not mapped."""
    length: int | Tensor
    """Number of pairs added so far; a tensor () if the memory is written in place."""
    kernel_cache: KernelCache | None = None
    """Results that kernels cache for these keys; None if the keys change in place."""

    @property
    def size(self) -> int:
        """Number of keys, including empty slots."""
        return self.keys.shape[-2]

    def is_mapped_by(self, score: Score) -> bool:
        """Return True if `map_keys` of this score was applied to the keys."""
        mapped_by = self.mapped_by
        # torch.export makes a new proxy of a module at each access; all of them share its
        # attributes.
        return mapped_by is score or (mapped_by is not None and vars(mapped_by) is vars(score))

    @abstractmethod
    def positions(self, num_queries: int) -> Positions:
        """Return the positions of queries: the last query is at the last key."""

    def map_keys_with(self, score: Score) -> Self:
        """Map the keys once, for many reads. Raises: ValueError if another score mapped them."""
        if self.is_mapped_by(score):
            return self
        if self.mapped_by is not None:
            kind = type(self.mapped_by).__name__
            raise ValueError(f"score must be the {kind} that mapped the keys, got another score")
        return self._map_keys(score)

    @abstractmethod
    def _map_keys(self, score: Score) -> Self:
        """Map the keys, which are not mapped yet."""

    @abstractmethod
    def extend(self, keys: NewKeys, values: NewValues) -> Self:
        """Append new pairs, whose keys must be mapped as the present ones are.

        Raises: ValueError if the memory has a mask, which would not cover the new keys, or if
                shapes or devices differ from those of the present pairs; TypeError if dtypes
                differ.
        """

    @abstractmethod
    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """Select the rows `index` of the first axis, in that order (beams)."""

    @abstractmethod
    def crop(self, size: int) -> Self:
        """Return the memory as it was after its first `size` pairs, counting discarded ones."""

    def with_pairs(
        self, keys: Float[Tensor, "... key key_dim"], values: Float[Tensor, "... key value_dim"]
    ) -> "MemoryView":
        """Return other keys and values at the positions of these, with the same mask, to be read.

        They are computed from this memory, which grows in their place: keys and values of one
        latent vector.
        """
        return MemoryView(self, keys, values)


@final
@dataclass(frozen=True, eq=False)
class MemoryView(KeyValueCache):
    """Keys and values that are read in place of those of a memory: `KeyValueCache.with_pairs`."""

    memory: KeyValueCache
    keys: Float[Tensor, "... key key_dim"]
    values: Float[Tensor, "... key value_dim"]
    mapped_by: Score | None = None

    @property
    def mask(self) -> Mask | None:
        return self.memory.mask

    @property
    def length(self) -> int | Tensor:
        return self.memory.length

    def positions(self, num_queries: int) -> Positions:
        return self.memory.positions(num_queries)

    def _map_keys(self, score: Score) -> Self:
        return replace(self, keys=map_all(score, "map_keys", self.keys), mapped_by=score)

    def extend(self, keys: NewKeys, values: NewValues) -> NoReturn:
        raise TypeError("a MemoryView is only read: extend its memory")

    def select(self, index: Int[Tensor, " rows"]) -> NoReturn:
        raise TypeError("a MemoryView is only read: select rows of its memory")

    def crop(self, size: int) -> NoReturn:
        raise TypeError("a MemoryView is only read: crop its memory")


def select_pairs(pairs: Tensor, index: Int[Tensor, " rows"]) -> Tensor:
    """Copy the rows `index` of keys or values; those without an axis of rows are shared by all."""
    return pairs.clone() if pairs.dim() == 2 else pairs.index_select(0, index)


def check_can_grow(memory: KeyValueCache) -> None:
    """Raise ValueError if the memory has a mask, which would not cover new keys."""
    if memory.mask is not None:
        raise ValueError(f"a memory must have no mask to be extended, got {memory.mask!r}")


def check_crop(size: int, most: int) -> None:
    """Raise ValueError unless a memory of `most` pairs can be cropped to this size."""
    if not 0 <= size <= most:
        raise ValueError(f"size must be between 0 and {most}, got {size}")


def check_new_pairs(
    old_keys: Tensor,
    old_values: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Raise ValueError or TypeError unless new pairs fit old ones.

    dtype: dtype of the keys and values that reads use, if it differs from that of storage.
    """
    for name, old, new in (("keys", old_keys, keys), ("values", old_values, values)):
        if new.dim() < 2 or new.shape[:-2] != old.shape[:-2] or new.shape[-1] != old.shape[-1]:
            shape = ", ".join((*map(str, old.shape[:-2]), "new", str(old.shape[-1])))
            raise ValueError(f"new {name} must be ({shape}), got {tuple(new.shape)}")
        expected = old.dtype if dtype is None else dtype
        if new.dtype != expected:
            raise TypeError(f"new {name} must have the memory's dtype {expected}, got {new.dtype}")
        if new.device != old.device:
            raise ValueError(f"new {name} must be on {old.device}, got {new.device}")
    if keys.shape[-2] != values.shape[-2]:
        numbers = f"{values.shape[-2]} values and {keys.shape[-2]} keys"
        raise ValueError(f"there must be as many new values as keys, got {numbers}")
