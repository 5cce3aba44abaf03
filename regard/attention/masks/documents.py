"""Document mask: queries attend to keys of their document, for packed rows."""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.attention.axes import (
    Rule,
    align_pair,
    is_inspectable,
    make_lookup,
    select_rows,
    to_integers,
)
from regard.attention.masks.base import Interval, Mask, may_lack_own_key
from regard.attention.positions import Positions

_NO_QUERY, _NO_KEY = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).min + 1
"""Document ids of queries and keys outside the given ids: they equal no other."""


@final
class Documents(Mask):
    """Document mask for packed sequences; see `documents`."""

    def __init__(
        self,
        ids: Int[Tensor, "... item"],
        key_ids: Int[Tensor, "... key"] | None = None,
        *,
        in_order: bool = False,
    ):
        self.ids, self.key_ids, self.in_order = ids, key_ids, in_order
        self._keys = ids if key_ids is None else key_ids

    def materialize(self, positions: Positions) -> Bool[Tensor, "... query key"]:
        query, key = self._of_queries(positions), self._of_keys(positions)
        return torch.eq(*align_pair(query.unsqueeze(-1), key.unsqueeze(-2)))

    def interval(self, positions: Positions) -> Interval | None:
        if not self.in_order:
            return None
        self._check(positions)
        query, key = self._of_queries(positions), self._keys.to(positions.device)
        query, key = align_pair(query.unsqueeze(-1), key.unsqueeze(-2))
        leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        query = query.expand(*leading, *query.shape[-2:]).squeeze(-1).contiguous()
        key = key.expand(*leading, *key.shape[-2:]).squeeze(-2).contiguous()
        first = torch.searchsorted(key, query).unsqueeze(-1)
        return first, torch.searchsorted(key, query, right=True).unsqueeze(-1)

    def rule(self, positions: Positions) -> Rule:
        query = make_lookup(self._of_queries(positions).unsqueeze(-1))
        key = make_lookup(self._of_keys(positions).unsqueeze(-2))
        return lambda *index: query(*index) == key(*index)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        key_ids = None if self.key_ids is None else select_rows(self.key_ids, index, 1)
        return Documents(select_rows(self.ids, index, 1), key_ids, in_order=self.in_order)

    def may_have_fully_masked_rows(self, positions: Positions) -> bool:
        return self.key_ids is not None or may_lack_own_key(positions)

    def _of_keys(self, positions: Positions) -> Tensor:
        self._check(positions)
        return _ids_at(self._keys.to(positions.device), positions.key, _NO_KEY)

    def _of_queries(self, positions: Positions) -> Tensor:
        """Return the document of each query, (..., query)."""
        ids = self.ids.to(positions.device)
        if self.key_ids is None:
            return _ids_at(ids, positions.query.squeeze(-1), _NO_QUERY)
        if ids.shape[-1] != positions.num_queries:
            sizes = f"{positions.num_queries} queries), got {tuple(ids.shape)}"
            raise ValueError(f"ids must be (..., {sizes}")
        return ids if positions.rows is None else ids[..., positions.rows[0] : positions.rows[1]]

    def _check(self, positions: Positions) -> None:
        name, keys = "ids" if self.key_ids is None else "key_ids", self._keys
        if positions.is_aligned and keys.shape[-1] < positions.num_keys:
            sizes = f"{positions.num_keys} keys or more), got {tuple(keys.shape)}"
            raise ValueError(f"{name} must be (..., {sizes}")

    def _shown_sizes(self) -> tuple[int, int]:
        queries, keys = super()._shown_sizes()
        keys = min(keys, self._keys.shape[-1])
        return (min(queries, keys) if self.key_ids is None else self.ids.shape[-1]), keys

    def __repr__(self) -> str:
        sizes = [str(tuple(x.shape)) for x in (self.ids, self.key_ids) if x is not None]
        return f"documents({', '.join(sizes)})"


def documents(
    ids: Int[Tensor, "... item"] | Sequence[int] | Sequence[Sequence[int]],
    key_ids: Int[Tensor, "... key"] | Sequence[int] | Sequence[Sequence[int]] | None = None,
) -> Mask:
    """Document mask for packed sequences: a query attends to keys of its document, ids[p] = ids[j].

    ids alone:      (item) or (batch, item), the document of each item, for self-attention; m
                    queries are the last m of n items, or at the positions of the read. Of longer
                    ids, the first n are used. Queries and keys at positions outside the ids match
                    nothing.
    ids, key_ids:   (..., query) and (..., key), for cross-attention: query i has ids[i].
    If the ids of the keys never decrease along a row (checked once, on a CPU only), the mask is an
    interval, and kernels skip other documents entirely: number the documents 0, 1, 2 ... and
    padding last. Tensors are copied.
    Raises: TypeError if ids are not integers, ValueError if they are too few for the read.
    """
    of_queries = _to_ids("ids", ids)
    of_keys = None if key_ids is None else _to_ids("key_ids", key_ids)
    keys = of_queries if of_keys is None else of_keys
    # Checked once, here: on an accelerator every check would synchronize the device.
    in_order = is_inspectable(keys) and bool((keys.diff() >= 0).all())
    return Documents(of_queries, of_keys, in_order=in_order)


def _ids_at(ids: Tensor, positions: Tensor, outside: int) -> Tensor:
    """Return ids[..., position] for each position, `outside` where there is none."""
    if ids.shape[-1] == 0:
        return torch.full((*ids.shape[:-1], *positions.shape), outside, device=ids.device)
    inside = ids[..., positions.clamp(0, ids.shape[-1] - 1)]
    return inside.masked_fill((positions < 0) | (positions >= ids.shape[-1]), outside)


def _to_ids(name: str, ids: Tensor | Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    tensor = to_integers(name, ids, meaning="the document of each item")
    if tensor.dim() < 1:
        raise ValueError(f"{name} must be (..., item), got a tensor without axes")
    return tensor
