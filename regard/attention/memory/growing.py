"""Memory of key-value pairs, fixed or growing: `extend` copies only the new pairs.

It is also a key-value store, whose keys are found by equality (regard.attention.memory.lookup).
"""

from dataclasses import dataclass, field, replace
from typing import Self, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.masks import Mask
from regard.attention.memory import lookup
from regard.attention.memory.base import (
    KernelCache,
    KeyValueCache,
    NewKeys,
    NewValues,
    check_can_grow,
    check_crop,
    check_new_pairs,
    select_pairs,
)
from regard.attention.positions import Positions
from regard.attention.scores import Score
from regard.attention.scores.base import map_all
from regard.compat.torch import is_wrapped

_MIN_PREALLOCATED = 2**15
"""Elements of the keys from which a growing memory is preallocated: smaller ones are copied."""
_Buffers = tuple[Tensor, Tensor]
"""Preallocated keys and values of a growing memory, with free slots after its pairs."""


@final
@dataclass(frozen=True, eq=False)
class Memory(KeyValueCache):
    """Keys (..., key, key_dim) and values (..., key, value_dim), with a mask over the keys.

    Shared:  the tensors are those that were passed, and `crop` returns views. A memory that grew
             without gradients is stored in larger preallocated buffers. The first `extend` of it
             writes into the same buffers, after its pairs; later ones allocate buffers of their
             own. So extending one memory never changes another.
    Cost:    `extend` copies a pair O(1) times on average (all pairs at every call, if they are few
             or have gradients), and the buffers are half as large again as the pairs (by at least
             16 pairs).
    """

    keys: Float[Tensor, "... key key_dim"]
    values: Float[Tensor, "... key value_dim"]
    mask: Mask | None = None
    mapped_by: Score | None = None
    _free_buffers: list[_Buffers | None] = field(default_factory=list, init=False, repr=False)
    """Ownership of the free slots after these pairs, removed by the first `extend`.

    [buffers]: the next extension may write into them. [None]: the memory was extended once, so the
    next extension allocates buffers. []: it was not extended since it was created or since
    `select`, which copies (for beams that are reordered at every step, preallocation would only
    copy more), or another memory owns the slots.
    """
    kernel_cache: KernelCache = field(default_factory=dict, init=False, repr=False)
    """Longer, selected and cropped memories start with an empty cache."""

    @property
    def length(self) -> int:
        return self.size

    def positions(self, num_queries: int) -> Positions:
        return Positions(num_queries, self.keys.shape[-2], self.keys.device)

    def _map_keys(self, score: Score) -> Self:
        keys = map_all(score, "map_keys", self.keys)
        return type(self)(keys, self.values, self.mask, score)

    def extend(self, keys: NewKeys, values: NewValues) -> Self:
        check_can_grow(self)
        check_new_pairs(self.keys, self.values, keys, values)
        if not _should_preallocate(self.keys, self.values, keys, values):
            return self._concatenate(keys, values)
        try:
            # Not a check before the pop: several threads may extend one prompt.
            buffers = self._free_buffers.pop()
        except IndexError:
            longer = self._concatenate(keys, values)
            longer._free_buffers.append(None)
            return longer
        old, size = self.size, self.size + keys.shape[-2]
        if buffers is not None:
            keys_buffer = buffers[0]
            is_read_only = keys_buffer.is_inference() and not torch.is_inference_mode_enabled()
            if size > keys_buffer.shape[-2] or is_read_only:
                buffers = None
        if buffers is None:
            buffers = _preallocate(self.keys, size), _preallocate(self.values, size)
        all_keys, all_values = (buffer.narrow(-2, 0, size) for buffer in buffers)
        all_keys[..., old:, :].copy_(keys)
        all_values[..., old:, :].copy_(values)
        longer = replace(self, keys=all_keys, values=all_values)
        longer._free_buffers.append(buffers)
        return longer

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        keys, values = select_pairs(self.keys, index), select_pairs(self.values, index)
        mask = None if self.mask is None else self.mask.select(index)
        return replace(self, keys=keys, values=values, mask=mask)

    def crop(self, size: int) -> Self:
        check_crop(size, self.size)
        return replace(self, keys=self.keys[..., :size, :], values=self.values[..., :size, :])

    @property
    def counts(self) -> Int[Tensor, "..."]:
        """Number of pairs of each row, without those that the mask hides."""
        return lookup.allowed_keys(self.mask, self.keys).sum(-1)

    def __len__(self) -> int:
        """Return the number of pairs of each row. Raises: ValueError if `counts` differ."""
        numbers = self.counts.unique().tolist()
        if len(numbers) > 1:
            raise ValueError(f"rows must have equal numbers of pairs for len(), got {numbers}")
        return numbers[0] if numbers else 0

    def put(self, keys: Float[Tensor, "..."], values: Float[Tensor, "..."]) -> Self:
        """Return the memory with these pairs, where new values replace those of equal keys.

        keys, values: (..., new, dim), or (..., dim) for one pair per row. Of equal new keys the
                      last value counts. Other pairs are added at the end.
        Raises: ValueError or TypeError if sizes, dtypes or devices differ, if the keys of the
                memory are mapped, or if a new key holds NaN, which equals nothing.
        """
        self._check_lookup()
        new_keys, new_values = self._with_axis("keys", keys), self._with_axis("values", values)
        check_new_pairs(self.keys, self.values, new_keys, new_values)
        if new_keys.shape[-2] == 0:
            return self
        if bool(new_keys.isnan().any()):
            raise ValueError("keys must not hold NaN, which equals nothing, got one")
        allowed = lookup.allowed_keys(self.mask, self.keys)
        pairs = lookup.put_pairs(self.keys, self.values, allowed, new_keys, new_values)
        return self._pack(*pairs)

    def get(
        self,
        queries: Float[Tensor, "..."],
        default: float | Tensor | None = None,
        *,
        score: Score | None = None,
        threshold: float | None = None,
    ) -> Float[Tensor, "..."]:
        """Return the value of the key of each query (equal, or of the highest score): a hard read.

        queries:   (..., query, dim), or (..., dim) for one query per row; so is the result.
        default:   value of queries whose key is missing; it broadcasts to the result. None:
                   KeyError.
        score:     compares queries and keys; None: a key is found if it equals the query.
        threshold: with a score, a key is missing if no score is at least this; None: only if there
                   is no pair.
        A soft read of the same memory is `attend(queries, memory, score=score)`.
        Raises: KeyError, naming the first query whose key is missing; ValueError if threshold is
                given without score, if sizes differ, or if the keys of the memory are mapped.
        """
        index = self._find("queries", queries, score, threshold)
        missing = index < 0
        if default is None:
            _raise_if_missing(missing, "queries")
        shape = (*index.shape, self.values.shape[-1])
        if self.size == 0:
            found = self.values.new_zeros(shape)
        else:
            found = self.values.gather(-2, index.clamp(min=0).unsqueeze(-1).expand(shape))
        if default is not None:
            replacement = torch.as_tensor(default).to(found).expand(shape)
            found = torch.where(missing.unsqueeze(-1), replacement, found)
        return found if queries.dim() == self.keys.dim() else found.squeeze(-2)

    def contains(self, queries: Float[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Return True for each query that a key equals: (..., query), or (...) for (..., dim)."""
        found = self._find("queries", queries) >= 0
        return found if queries.dim() == self.keys.dim() else found.squeeze(-1)

    def delete(self, keys: Float[Tensor, "..."]) -> Self:
        """Return the memory without the pairs of these keys, (..., removed, dim) or (..., dim).

        Raises: KeyError, naming the first key that is missing; ValueError if sizes differ.
        """
        _raise_if_missing(self._find("keys", keys) < 0, "keys")
        allowed = lookup.allowed_keys(self.mask, self.keys)
        removed = self._with_axis("keys", keys)
        is_kept = lookup.find_equal(self.keys, removed, lookup.allowed_keys(None, removed)) < 0
        return self._pack(self.keys, self.values, allowed & is_kept)

    def __getitem__(self, queries: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return `get(queries)`. Raises KeyError if a key is missing."""
        return self.get(queries)

    def __contains__(self, query: object) -> bool:
        """Return True if every query has an equal key; see `contains`."""
        return isinstance(query, Tensor) and bool(self.contains(query).all())

    def _find(
        self, name: str, queries: Tensor, score: Score | None = None, threshold: float | None = None
    ) -> Int[Tensor, "... query"]:
        """Return the index of each query's key, -1 where it is missing."""
        self._check_lookup()
        queries = self._with_axis(name, queries)
        allowed = lookup.allowed_keys(self.mask, self.keys)
        if score is not None:
            return lookup.find_best(queries, self.keys, allowed, score, threshold)
        if threshold is not None:
            raise ValueError(f"threshold must be None without a score, got {threshold}")
        if queries.shape[-1] != self.keys.shape[-1]:
            sizes = f"{self.keys.shape[-1]}, got {queries.shape[-1]}"
            raise ValueError(f"{name} must have the size of the keys, {sizes}")
        if queries.dtype != self.keys.dtype:
            dtypes = f"{self.keys.dtype}, got {queries.dtype}"
            raise TypeError(f"{name} must have the dtype of the keys, {dtypes}")
        return lookup.find_equal(queries, self.keys, allowed)

    def _with_axis(self, name: str, tensor: Tensor) -> Tensor:
        """Return (..., item, dim) for a tensor that may lack the axis of items."""
        given = tensor if tensor.dim() == self.keys.dim() else tensor.unsqueeze(-2)
        leading = self.keys.shape[:-2]
        if given.dim() != self.keys.dim() or given.shape[:-2] != leading:
            axes = "".join(f"{size}, " for size in leading)
            shapes = f"({axes}item, dim) or ({axes}dim), got shape {tuple(tensor.shape)}"
            raise ValueError(f"{name} must be {shapes}")
        return given

    def _check_lookup(self) -> None:
        if self.mapped_by is not None:
            kind = type(self.mapped_by).__name__
            raise ValueError(f"keys must not be mapped to be found, got keys mapped by {kind}")
        if self.keys.shape[:-2] != self.values.shape[:-2]:
            shapes = f"{tuple(self.keys.shape)} and {tuple(self.values.shape)}"
            raise ValueError(f"keys and values must have the same leading axes, got {shapes}")

    def _pack(self, keys: Tensor, values: Tensor, allowed: Tensor) -> Self:
        keys, values, mask = lookup.compact(keys, values, allowed)
        return replace(self, keys=keys, values=values, mask=mask)

    def _concatenate(self, keys: Tensor, values: Tensor) -> Self:
        keys, values = torch.cat((self.keys, keys), -2), torch.cat((self.values, values), -2)
        return replace(self, keys=keys, values=values)


def _raise_if_missing(missing: Bool[Tensor, "... query"], name: str) -> None:
    if bool(missing.any()):
        *row, number = missing.nonzero()[0].tolist()
        where = f" of row {', '.join(map(str, row))}" if row else ""
        raise KeyError(f"{name} must be in the memory, but number {number}{where} is not")


def _should_preallocate(old_keys: Tensor, *others: Tensor) -> bool:
    """Return True if the memory is large, and no autograd, torch.func or compiler traces it."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return False
    if old_keys.numel() < _MIN_PREALLOCATED:
        return False
    return not any(is_wrapped(tensor) for tensor in (old_keys, *others))


def _preallocate(tensor: Tensor, size: int) -> Tensor:
    """Copy a tensor (..., key, dim) to the start of one with `size` slots and half as many more."""
    *leading, old, dim = tensor.shape
    buffer = tensor.new_empty(*leading, size + max(size // 2, 16), dim)
    buffer.narrow(-2, 0, old).copy_(tensor)
    return buffer
