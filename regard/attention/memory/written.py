"""Memories that are written: a matrix S of a fixed size in place of pairs.

    FadingMemory    S <- a S + k v^T                        retention, linear attention with decay
    DeltaMemory     S <- a S + b k (v - a S^T k)^T          (gated) delta rule
    read            o = S^T q

A sum keeps every pair: S^T k has v_j of all keys that resemble k. A decay a < 1 fades all of them;
the delta rule replaces what S has at k. With orthogonal keys of norm 1, b = 1 and a = 1,
`DeltaMemory.extend` is `Memory.put`: then S^T k = v, and the values of other keys are unchanged.

Source: sun2023 (decay); schlag2021 (delta rule); yang2025a (gates).
"""

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.axes import widen
from regard.attention.masks import Mask
from regard.attention.memory.base import NewKeys, NewValues
from regard.attention.memory.linear import is_same_for_all_queries
from regard.attention.memory.lookup import allowed_keys
from regard.attention.positions import Positions
from regard.ops.delta_rule import Writes, implied_weights, write

Queries = Float[Tensor, "... query key_dim"]
Reads = Float[Tensor, "... query value_dim"]
Gate = Float[Tensor, "..."]
"""A number for each new pair, (..., new), or a shape that broadcasts to it: (head, 1)."""


@dataclass(frozen=True, eq=False)
class WrittenMemory(ABC):
    """Base class of memories whose pairs are written into one matrix; immutable.

    It is no KeyValueCache: it has no single pairs, and so neither scores nor a softmax. S is at
    least in float32. Create it by `empty`.
    """

    _has_strength: ClassVar[bool]
    state: Float[Tensor, "... key_dim value_dim"]
    """S."""
    length: int = 0
    """Number of pairs so far, hidden ones included."""
    writes: tuple[Writes, ...] | None = None
    """All pairs, for `weights`; None: they are not kept."""

    @classmethod
    def empty(
        cls,
        leading: Sequence[int],
        *,
        key_dim: int,
        value_dim: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        keeps_writes: bool = False,
    ) -> Self:
        """Create a memory without pairs, of leading axes such as (batch, head).

        value_dim: default key_dim. keeps_writes: keep all pairs, for `weights`.
        """
        value_dim = key_dim if value_dim is None else value_dim
        state = torch.zeros(*leading, key_dim, value_dim, dtype=dtype, device=device)
        return cls(widen(state), writes=() if keeps_writes else None)

    def read(self, query: Queries) -> Reads:
        """Return S^T q of each query: all of them read all pairs."""
        with torch.autocast(query.device.type, enabled=False):
            return (widen(query) @ self.state).to(query.dtype)

    def weights(self, query: Queries) -> Float[Tensor, "... query key"]:
        """Return the weights of the values that are implied by the reads of the last queries.

        Query i of m reads the memory before the last m - i pairs. Weights may be negative, and
        their sum is not one. Raises: ValueError if not all pairs were kept.
        """
        writes = self.writes or ()
        if sum(some.keys.shape[-2] for some in writes) != self.length or not writes:
            raise ValueError("weights need all pairs: create the memory with keeps_writes=True")
        parts = zip(*writes, strict=True)
        every = Writes(*(torch.cat(x, -2) for x in parts if x[0] is not None))
        with torch.autocast(query.device.type, enabled=False):
            return implied_weights(widen(query), every)

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """Select the rows `index` of the first axis, in that order (beams)."""
        if self.state.dim() == 2:  # without an axis of rows, shared by all
            return self
        writes = self.writes
        if writes is not None:
            writes = tuple(_map(some, lambda x: x.index_select(0, index)) for some in writes)
        return replace(self, state=self.state.index_select(0, index), writes=writes)

    def crop(self, size: int) -> Self:
        """Return the memory itself, or an empty one. Raises: ValueError for other sizes."""
        if size == self.length:
            return self
        if size != 0:
            sizes = f"0 or {self.length}: no pair can be removed from S"
            raise ValueError(f"size of a {type(self).__name__} must be {sizes}, got {size}")
        writes = None if self.writes is None else ()
        return replace(self, state=torch.zeros_like(self.state), length=0, writes=writes)

    def extend(
        self,
        keys: NewKeys,
        values: NewValues,
        *,
        log_decay: Gate | None = None,
        strength: Gate | None = None,
        mask: Mask | None = None,
    ) -> Self:
        """Write new pairs, one after another; see `step`."""
        return self.step(keys, keys, values, log_decay=log_decay, strength=strength, mask=mask)[1]

    def step(
        self,
        query: Queries,
        keys: NewKeys,
        values: NewValues,
        *,
        log_decay: Gate | None = None,
        strength: Gate | None = None,
        mask: Mask | None = None,
    ) -> tuple[Reads, Any]:
        """Write new pairs, and read with query t after pair t: return the reads and the memory.

        log_decay: log a, finite and at most 0; None: 0.
        strength:  b of a DeltaMemory: 1 replaces the value at k, 0 keeps it; None: 1.
        mask:      hidden pairs are neither written nor fade the memory, such as padding(lengths).
        Raises:    ValueError if shapes do not fit, for the strength of a FadingMemory, or if the
                   mask differs between queries.
        """
        *leading, key_dim, value_dim = self.state.shape
        num_new = keys.shape[-2]
        given = ("query", query, key_dim), ("keys", keys, key_dim), ("values", values, value_dim)
        for name, tensor, size in given:
            if tensor.shape != (*leading, num_new, size):
                axes = ", ".join((*map(str, leading), "new", str(size)))
                raise ValueError(f"{name} must be ({axes}), got {tuple(tensor.shape)}")
        gates = [keys.new_zeros(()) if log_decay is None else log_decay]
        if self._has_strength:
            gates.append(keys.new_ones(()) if strength is None else strength)
        elif strength is not None:
            raise ValueError(f"strength must be None for a {type(self).__name__}")
        shape = keys.shape[:-1]
        gates = [gate if gate.shape == shape else gate.expand(shape) for gate in gates]
        writes = Writes(keys, values, *[gate.unsqueeze(-1) for gate in gates])
        wide = self.state.dtype
        if any(x is not None and x.dtype != wide for x in (query, *writes)):
            query, writes = widen(query), _map(writes, widen)
        if mask is not None:
            if not is_same_for_all_queries(mask, Positions(2, num_new, keys.device)):
                raise ValueError(f"the mask must be the same for every query, got {mask!r}")
            hidden = ~allowed_keys(mask, keys).unsqueeze(-1)
            writes = _map(writes, lambda x: x.masked_fill(hidden, 0.0))
        kind = keys.device.type
        if torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                out, state = write(query, writes, self.state)
        else:
            out, state = write(query, writes, self.state)
        kept = None if self.writes is None else (*self.writes, writes)
        out = out if out.dtype == values.dtype else out.to(values.dtype)
        return out, type(self)(state, self.length + num_new, kept)


@final
@dataclass(frozen=True, eq=False)
class FadingMemory(WrittenMemory):
    """Memory that fades: S <- a S + k v^T. Without decay, the sums of linear attention."""

    _has_strength: ClassVar[bool] = False


@final
@dataclass(frozen=True, eq=False)
class DeltaMemory(WrittenMemory):
    """Memory written by the delta rule: S <- a S + b k (v - a S^T k)^T.

    Keys should have norm 1: with b |k|^2 > 2 errors grow.
    """

    _has_strength: ClassVar[bool] = True


def _map(writes: Writes, function: Callable[[Tensor], Tensor]) -> Writes:
    """Return function(x) of each tensor."""
    return Writes(*(function(x) for x in writes if x is not None))
