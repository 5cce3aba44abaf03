"""Memory of key-value pairs, fixed or growing: buffers are preallocated, so that `extend` copies only the new pairs."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.masks import Mask
from regard.attention.memory.base import KernelCache, KeyValueCache, check_can_grow, check_new_pairs, check_unmapped
from regard.attention.positions import Positions
from regard.attention.scores import Score
from regard.compat.torch import is_wrapped

_MIN_PREALLOCATED = 2**15
"""Least number of elements in the keys for which a growing memory is preallocated: smaller ones are copied faster."""


class _Buffers(NamedTuple):
    """Preallocated buffers of a growing memory, with free slots after its pairs."""

    keys: Tensor
    """(..., slot, key_dim)"""
    values: Tensor
    """(..., slot, value_dim)"""


@final
@dataclass(frozen=True, eq=False)
class Memory(KeyValueCache):
    """Keys (..., key, key_dim) and values (..., key, value_dim), with an optional mask over the keys.

    Shared:  the tensors are those that were passed, and `crop` returns views. A memory that grew without gradients is
             stored in larger preallocated buffers. The first `extend` of it writes into the same buffers, after its
             pairs; later ones allocate buffers of their own. So extending one memory never changes another.
    Cost:    `extend` copies a pair O(1) times on average (all pairs at every call, if they are few or have gradients),
             and the buffers are half as large again as the pairs (by at least 16 pairs).
    Raises:  ValueError if the numbers of keys and values differ (both are in the message).
    """

    keys: Float[Tensor, "... key key_dim"]
    """Keys, which are compared with the queries."""
    values: Float[Tensor, "... key value_dim"]
    """Values, whose weighted sums are the output."""
    mask: Mask | None = None
    """Mask over the keys, for all queries (padding); combined with the mask of each read."""
    mapped_by: Score | None = None
    """Score whose `map_keys` was applied to the keys; None if they are not mapped."""
    _free_buffers: list[_Buffers | None] = field(default_factory=list, init=False, repr=False)
    """Ownership of the free slots after these pairs, removed by the first `extend`.

    [buffers]: the next extension may write into them. [None]: the memory was extended once, so the next extension
    allocates buffers. []: it was not extended since it was created or since `select`, which copies (for beams that
    are reordered at every step, preallocation would only copy more), or another memory owns the slots.
    """

    kernel_cache: KernelCache = field(default_factory=dict, init=False, repr=False)
    """Results that kernels cache for these keys; longer, selected and cropped memories start with an empty cache."""

    def __post_init__(self) -> None:
        if self.keys.shape[-2] != self.values.shape[-2]:
            raise ValueError(
                f"there must be as many values as keys, got {self.keys.shape[-2]} keys "
                f"and {self.values.shape[-2]} values"
            )

    @property
    def length(self) -> int:
        """Number of pairs."""
        return self.size

    def positions(self, num_queries: int) -> Positions:
        """Return the positions of queries that read this memory: the last query is at the last key."""
        return Positions(num_queries, self.size, self.keys.device)

    def map_keys_with(self, score: Score) -> Self:
        """Map the keys once, for many reads with this score."""
        if self.mapped_by is score:
            return self
        check_unmapped(self)
        return replace(self, keys=score.map_keys(self.keys), mapped_by=score)

    def extend(self, keys: Float[Tensor, "... new key_dim"], values: Float[Tensor, "... new value_dim"]) -> Self:
        """Append new pairs. Keys must be mapped as the present ones are.

        Raises: ValueError if the memory has a mask, which would not cover the new keys, or if shapes or devices differ
                from those of the present pairs; TypeError if dtypes differ.
        """
        check_can_grow(self)
        check_new_pairs(self.keys, self.values, keys, values)
        if not _should_preallocate(self.keys, self.values, keys, values):
            return self._concatenate(keys, values)
        try:
            buffers = self._free_buffers.pop()  # not a check before the pop: several threads may extend one prompt
        except IndexError:
            longer = self._concatenate(keys, values)
            longer._free_buffers.append(None)
            return longer
        old, size = self.size, self.size + keys.shape[-2]
        if buffers is None or not _fits(buffers, size):
            buffers = _Buffers(_preallocate(self.keys, size), _preallocate(self.values, size))
        buffers.keys.narrow(-2, old, size - old).copy_(keys)
        buffers.values.narrow(-2, old, size - old).copy_(values)
        longer = replace(self, keys=buffers.keys.narrow(-2, 0, size), values=buffers.values.narrow(-2, 0, size))
        longer._free_buffers.append(buffers)
        return longer

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """Select the rows `index` of the first axis, in that order (beams, unfinished sequences)."""
        return replace(
            self,
            keys=self.keys.index_select(0, index),
            values=self.values.index_select(0, index),
            mask=None if self.mask is None else self.mask.select(index),
        )

    def crop(self, size: int) -> Self:
        """Keep the first `size` pairs, as views."""
        if not 0 <= size <= self.size:
            raise ValueError(f"size must be between 0 and {self.size}, got {size}")
        return replace(self, keys=self.keys[..., :size, :], values=self.values[..., :size, :])

    def _concatenate(self, keys: Tensor, values: Tensor) -> Self:
        return replace(self, keys=torch.cat((self.keys, keys), -2), values=torch.cat((self.values, values), -2))


def _should_preallocate(old_keys: Tensor, *others: Tensor) -> bool:
    """Return True if the memory is large, and its tensors are not traced by autograd, torch.func or a compiler."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or old_keys.numel() < _MIN_PREALLOCATED:
        return False
    return not any(is_wrapped(tensor) for tensor in (old_keys, *others))


def _fits(buffers: _Buffers, size: int) -> bool:
    """Return True if the buffers have `size` slots and are writable (inference tensors are not, outside that mode)."""
    is_read_only = buffers.keys.is_inference() and not torch.is_inference_mode_enabled()
    return size <= buffers.keys.shape[-2] and not is_read_only


def _preallocate(tensor: Tensor, size: int) -> Tensor:
    """Copy a tensor (..., key, dim) to the start of one with `size` slots and half as many again, at least 16."""
    *leading, old, dim = tensor.shape
    buffer = tensor.new_empty(*leading, size + max(size // 2, 16), dim)
    buffer.narrow(-2, 0, old).copy_(tensor)
    return buffer
