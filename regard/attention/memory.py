"""Memory: the key-value pairs that queries read.

    (k_1, v_1) ... (k_n, v_n)      keys (..., n, d_k)      values (..., n, d_v)

A memory is a value: it is passed in and returned, never hidden on a module. A fixed one (encoder states) has its
keys mapped once by `map_keys_with(score)`; a growing one (the past of a decoder) gives a longer one by `extend`.

Source: lectures, A (attention as reading a memory).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.masks import Mask
from regard.attention.places import Places
from regard.attention.scores import Score

__all__ = ["Memory", "Store"]


class Store(ABC):
    """What reads and decoders ask of a memory, however it keeps its pairs."""

    keys: Tensor
    """(..., key, key_dim)"""
    values: Tensor
    """(..., key, value_dim)"""
    mask: Mask | None
    """Hides keys from every query; a read's own mask comes on top."""
    mapped_by: Score | None
    """The score whose `map_keys` the keys have been through; None if they are as given."""

    @property
    def size(self) -> int:
        """Number of keys, places that are not filled yet included."""
        return self.keys.shape[-2]

    @abstractmethod
    def places(self, num_queries: int) -> Places:
        """Where queries stand that read this memory: the last of them at the last key."""

    @abstractmethod
    def map_keys_with(self, score: Score) -> Self:
        """The same memory with keys mapped once, for many reads with this score."""

    @abstractmethod
    def extend(self, keys: Float[Tensor, "... new key_dim"], values: Float[Tensor, "... new value_dim"]) -> Self:
        """This memory followed by new pairs, whose keys are mapped as the ones already here are."""

    @abstractmethod
    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """The rows `index` of the first axis, in that order (beams, finished sentences)."""

    @abstractmethod
    def crop(self, size: int) -> Self:
        """The first `size` pairs."""


@final
@dataclass(frozen=True, eq=False)
class Memory(Store):
    """Keys (..., key, key_dim), values (..., key, value_dim), and which of them may be read at all.

    Raises: ValueError if there are not as many keys as values (both numbers are in the message).
    """

    keys: Float[Tensor, "... key key_dim"]
    """What queries are compared with."""
    values: Float[Tensor, "... key value_dim"]
    """What a read gives back, weighted."""
    mask: Mask | None = None
    """Hides keys from every query (padding); a read's own mask comes on top."""
    mapped_by: Score | None = None
    """The score whose `map_keys` these keys have been through; None if they are as given."""

    def __post_init__(self) -> None:
        if self.keys.shape[-2] != self.values.shape[-2]:
            raise ValueError(
                f"a memory needs a value for each key, but has {self.keys.shape[-2]} keys "
                f"and {self.values.shape[-2]} values"
            )

    def places(self, num_queries: int) -> Places:
        """Where queries stand that read this memory: the last of them at the last key."""
        return Places(num_queries, self.size, self.keys.device)

    def map_keys_with(self, score: Score) -> Self:
        """The same memory with keys mapped once, for many reads with this score."""
        if self.mapped_by is score:
            return self
        if self.mapped_by is not None:
            raise ValueError(
                f"these keys were mapped by another {type(self.mapped_by).__name__}: a mapped memory serves "
                "only the score that mapped it"
            )
        return replace(self, keys=score.map_keys(self.keys), mapped_by=score)

    def extend(self, keys: Float[Tensor, "... new key_dim"], values: Float[Tensor, "... new value_dim"]) -> Self:
        """This memory followed by new pairs. Keys must be mapped as the ones already here are.

        Raises: ValueError if the memory has a mask, which would not know of the new keys.
        """
        if self.mask is not None:
            raise ValueError(f"a memory with a mask cannot grow, but has {self.mask!r}")
        return replace(self, keys=torch.cat((self.keys, keys), -2), values=torch.cat((self.values, values), -2))

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """The rows `index` of the first axis, in that order (beams, finished sentences)."""
        return replace(
            self,
            keys=self.keys.index_select(0, index),
            values=self.values.index_select(0, index),
            mask=None if self.mask is None else self.mask.select(index),
        )

    def crop(self, size: int) -> Self:
        """The first `size` pairs."""
        if not 0 <= size <= self.size:
            raise ValueError(f"size must be between 0 and {self.size}, but is {size}")
        return replace(self, keys=self.keys[..., :size, :], values=self.values[..., :size, :])
