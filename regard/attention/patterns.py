"""More masks: sliding windows, prefix LM, packed documents and random blocks.

    window(size, ahead)      query at position p attends to key j  iff  p + ahead - size < j <= p + ahead
    prefix(lengths)          ... of row b                          iff  j <= p  or  j < lengths[b]
    documents(ids)           ... of row b                          iff  ids[b, j] = ids[b, p]
    random_blocks(block, r)  ...                                   iff  the block of j is one of r drawn for that of p

All are functions of positions, so a decoding step, a tile of a long read and the whole read agree. They combine with
`&`, `|` and `~` as all masks do: `causal() & (window(64) | random_blocks(16, 3, seed=1))` is sparse causal attention.

Source: beltagy2020 (windows), raffel2020 (prefixes), zaheer2020 (random blocks).
"""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.attention.axes import Rule, align_pair, is_inspectable, make_lookup
from regard.attention.masks import Interval, Mask, causal, dense, padding, to_lengths
from regard.attention.picture import save_from_command_line, side_by_side
from regard.attention.places import Positions
from regard.attention.sizes import check_integer

_NO_QUERY, _NO_KEY = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).min + 1
"""Document ids of queries and keys outside the given ids: they equal no other."""


@final
class Window(Mask):
    """Sliding-window mask: the query at position p attends to p + ahead - size < j <= p + ahead."""

    def __init__(self, size: int, ahead: int = 0):
        self.size, self.ahead = size, ahead

    def materialize(self, positions: Positions) -> Bool[Tensor, "query key"]:
        """Return True for keys inside the window of the query."""
        return self._is_inside(positions.query, positions.key)

    def interval(self, positions: Positions) -> Interval | None:
        """Return the window."""
        if positions.key_positions is not None:
            return None
        last = positions.query + (self.ahead + 1)
        return last - self.size, last

    def rule(self, positions: Positions) -> Rule:
        """Return the window as a function of indices."""
        if positions.key_positions is not None:
            return make_lookup(self.materialize(positions))
        first = positions.first
        return lambda row, head, query, key: self._is_inside(query + first, key)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """Return the mask itself: every row has the same."""
        return self

    def may_have_fully_masked_rows(self, positions: Positions) -> bool:
        """Return False if every query has a key at its own position, which it attends to."""
        return _may_lack_own_key(positions)

    def _is_inside(self, query: Tensor, key: Tensor) -> Tensor:
        last = query + self.ahead
        return (key > last - self.size) & (key <= last)

    def __repr__(self) -> str:
        return f"window({self.size}, ahead={self.ahead})" if self.ahead else f"window({self.size})"


@final
class Prefix(Mask):
    """Prefix-LM mask: the query at position p of row b attends to key j iff j <= p or j < lengths[b]."""

    def __init__(self, lengths: Int[Tensor, "..."]):
        self.lengths = lengths

    def materialize(self, positions: Positions) -> Bool[Tensor, "... query key"]:
        """Return True for keys up to the query's position or in the prefix."""
        return positions.key < self._last(positions)

    def interval(self, positions: Positions) -> Interval | None:
        """Return 0 <= j < max(p + 1, length)."""
        if positions.key_positions is not None:
            return None
        last = self._last(positions)
        return torch.zeros_like(last), last

    def rule(self, positions: Positions) -> Rule:
        """Return the mask as a function of indices."""
        if positions.key_positions is not None:
            return make_lookup(self.materialize(positions))
        first, length = positions.first, make_lookup(self._column(positions))
        return lambda row, head, query, key: (key <= query + first) | (key < length(row, head, query, key))

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """Select the lengths of the rows."""
        if self.lengths.dim() == 0 or len(self.lengths) == 1:  # one length for all rows
            return self
        return Prefix(self.lengths.index_select(0, index.to(self.lengths.device)))

    def may_have_fully_masked_rows(self, positions: Positions) -> bool:
        """Return False if every query has a key at its own position, which it attends to."""
        return _may_lack_own_key(positions)

    def _last(self, positions: Positions) -> Tensor:
        return torch.maximum(*align_pair(positions.query + 1, self._column(positions)))

    def _column(self, positions: Positions) -> Tensor:
        return self.lengths.to(positions.device)[..., None, None]

    def __repr__(self) -> str:
        return f"prefix({self.lengths.tolist()})"


@final
class Documents(Mask):
    """Document mask for packed sequences; see `documents`."""

    def __init__(
        self, ids: Int[Tensor, "... item"], key_ids: Int[Tensor, "... key"] | None = None, *, in_order: bool = False
    ):
        self.ids, self.key_ids, self.in_order = ids, key_ids, in_order

    def materialize(self, positions: Positions) -> Bool[Tensor, "... query key"]:
        """Return True where the ids are equal."""
        query, key = self._of_queries(positions), self._of_keys(positions)
        return torch.eq(*align_pair(query.unsqueeze(-1), key.unsqueeze(-2)))

    def interval(self, positions: Positions) -> Interval | None:
        """Return the first to the last key of the document, if the ids of the keys never decrease."""
        if positions.key_positions is not None or not self.in_order:
            return None
        self._check(positions)
        query, key = self._of_queries(positions), self._keys().to(positions.device)
        query, key = align_pair(query.unsqueeze(-1), key.unsqueeze(-2))
        leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        query = query.expand(*leading, *query.shape[-2:]).squeeze(-1).contiguous()
        key = key.expand(*leading, *key.shape[-2:]).squeeze(-2).contiguous()
        first, last = (torch.searchsorted(key, query, right=right).unsqueeze(-1) for right in (False, True))
        return first, last

    def rule(self, positions: Positions) -> Rule:
        """Return the comparison of ids as a function of indices."""
        query = make_lookup(self._of_queries(positions).unsqueeze(-1))
        key = make_lookup(self._of_keys(positions).unsqueeze(-2))
        return lambda *index: query(*index) == key(*index)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """Select the ids of the rows, if there is an axis of rows."""
        key_ids = None if self.key_ids is None else _select_rows(self.key_ids, index)
        return Documents(_select_rows(self.ids, index), key_ids, in_order=self.in_order)

    def may_have_fully_masked_rows(self, positions: Positions) -> bool:
        """Return False for self-attention in which every query has a key at its own position."""
        return self.key_ids is not None or _may_lack_own_key(positions)

    def _keys(self) -> Tensor:
        return self.ids if self.key_ids is None else self.key_ids

    def _of_keys(self, positions: Positions) -> Tensor:
        """Return the document of each key, (..., key)."""
        self._check(positions)
        return _ids_at(self._keys().to(positions.device), positions.key, _NO_KEY)

    def _of_queries(self, positions: Positions) -> Tensor:
        """Return the document of each query, (..., query)."""
        ids = self.ids.to(positions.device)
        if self.key_ids is None:
            return _ids_at(ids, positions.query.squeeze(-1), _NO_QUERY)
        if ids.shape[-1] != positions.num_queries:
            raise ValueError(f"ids must be (..., {positions.num_queries} queries), got {tuple(ids.shape)}")
        return ids if positions.rows is None else ids[..., positions.rows[0] : positions.rows[1]]

    def _check(self, positions: Positions) -> None:
        name, keys = "ids" if self.key_ids is None else "key_ids", self._keys()
        if positions.is_aligned and keys.shape[-1] < positions.num_keys:
            raise ValueError(f"{name} must be (..., {positions.num_keys} keys or more), got {tuple(keys.shape)}")

    def __repr__(self) -> str:
        sizes = [str(tuple(x.shape)) for x in (self.ids, self.key_ids) if x is not None]
        return f"documents({', '.join(sizes)})"


@final
class RandomBlocks(Mask):
    """Random-block mask: each block of queries attends to `per_query` blocks of keys; see `random_blocks`."""

    def __init__(self, block: int, per_query: int, *, seed: int, length: int | None = None):
        self.block, self.per_query, self.seed, self.length = block, per_query, seed, length

    def materialize(self, positions: Positions) -> Bool[Tensor, "query key"]:
        """Return True for keys whose block is drawn for the block of the query."""
        return self._is_drawn(positions.query, positions.key)

    def rule(self, positions: Positions) -> Rule:
        """Return the mask as a function of indices, without a table."""
        if positions.key_positions is not None:
            return make_lookup(self.materialize(positions))
        first = positions.first
        return lambda row, head, query, key: self._is_drawn(query + first, key)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """Return the mask itself: every row has the same."""
        return self

    def _is_drawn(self, query: Tensor, key: Tensor) -> Tensor:
        """Return True where the block of the key position is drawn for the block of the query position."""
        block = key // self.block
        allowed = torch.zeros_like(query + key, dtype=torch.bool)
        for choice in self._draw_blocks(query // self.block):
            allowed = allowed | (block == choice)
        return allowed & (key >= 0)

    def _draw_blocks(self, block: Tensor) -> list[Tensor]:
        """Draw `per_query` different blocks of keys for each block of queries, -1 where there are fewer.

        Floyd's algorithm to draw r of N without replacement: for top = N - r .. N - 1, draw one of 0 .. top, and use
        top itself if that one was drawn before.
        """
        count = block + 1 if self.length is None else torch.full_like(block, -(-self.length // self.block))
        state = _hash(_hash(block & _WORD) ^ self.seed)
        choices: list[Tensor] = []
        for number in range(self.per_query):
            top = count - self.per_query + number
            choice = _hash(state + number) % (top + 1).clamp(min=1)
            for earlier in choices:
                choice = torch.where(choice == earlier, top, choice)
            choices.append(torch.where(top < 0, -1, choice))
        return choices

    def __repr__(self) -> str:
        length = "" if self.length is None else f", length={self.length}"
        return f"random_blocks({self.block}, {self.per_query}, seed={self.seed}{length})"


def window(size: int, ahead: int = 0) -> Mask:
    """Sliding-window mask of `size` keys, the query's own included, `ahead` of them after it.

    The query at position p attends to p + ahead - size < j <= p + ahead. `window(64)` is causal attention to the last
    64 keys; `window(2 * w + 1, ahead=w)` attends to w keys on either side.
    Raises: TypeError unless both are integers, ValueError unless size >= 1 and 0 <= ahead < size.
    Source: beltagy2020, section 3.1 (sliding window).
    """
    check_integer("size", size, 1)
    check_integer("ahead", ahead, 0)
    if ahead >= size:
        raise ValueError(f"ahead must be less than the size {size}, which includes the query, got {ahead}")
    return Window(size, ahead)


def prefix(lengths: Int[Tensor, "..."] | Sequence[int]) -> Mask:
    """Prefix-LM mask: causal, but all queries of row b attend to its first lengths[b] keys, j < max(p + 1, lengths[b]).

    Attention is bidirectional within the prefix and causal after it (a prefix language model).
    Raises: TypeError if lengths are not integers, ValueError if one is negative.
    Source: raffel2020, section 3.2.1 (causal with prefix).
    """
    return Prefix(to_lengths("lengths", lengths))


def documents(
    ids: Int[Tensor, "... item"] | Sequence[int] | Sequence[Sequence[int]],
    key_ids: Int[Tensor, "... key"] | Sequence[int] | Sequence[Sequence[int]] | None = None,
) -> Mask:
    """Document mask for packed sequences: a query attends to the keys of its own document only, ids[p] = ids[j].

    ids alone:      (item) or (batch, item), the document of each item, for self-attention; m queries are the last m of
                    n items, or at the positions of the read. Of longer ids, the first n are used. Queries and keys at
                    positions outside the ids match nothing.
    ids, key_ids:   (..., query) and (..., key), for cross-attention: query i has ids[i].
    If the ids of the keys never decrease along a row (checked once, on a CPU only), the mask is an interval, and
    kernels skip other documents entirely: number the documents 0, 1, 2 ... and padding last. Tensors are copied.
    Raises: TypeError if ids are not integers, ValueError if they have no axis of items or are too few for the read.
    """
    of_queries = _to_ids("ids", ids)
    of_keys = None if key_ids is None else _to_ids("key_ids", key_ids)
    keys = of_queries if of_keys is None else of_keys
    # Checked once, here: on an accelerator every check would synchronize the device.
    in_order = is_inspectable(keys) and bool((keys.diff() >= 0).all())
    return Documents(of_queries, of_keys, in_order=in_order)


def random_blocks(block: int, per_query: int, *, seed: int, length: int | None = None) -> Mask:
    """Random-block mask: each block of queries attends to `per_query` different random blocks of keys. (BigBird)

    block:          number of positions per block.
    length None:    blocks are drawn up to the query's own, so that a growing memory gives the same mask as the whole
                    sequence; the first blocks have fewer to draw from, and attend to all of them. Within its own block
                    a query attends to later keys: combine with causal() to exclude them.
    length n:       blocks are drawn from all blocks of n keys, before and after the query (encoders).
    The draw is an integer hash of (seed, block of the query, length): the same on every device, in every tile and
    step. The last block may be partial; it is drawn as often as the others. Blocks inside a window may be drawn too.
    Usually combined as `random_blocks(...) | window(...)`.
    Raises: TypeError unless all are integers, ValueError unless block, per_query, length >= 1 and 0 <= seed < 2^32.
    Source: zaheer2020, section 2 (random attention) and appendix D (in blocks).
    """
    for name, value in (("block", block), ("per_query", per_query), ("length", 1 if length is None else length)):
        check_integer(name, value, 1)
    check_integer("seed", seed, 0)
    if seed > _WORD:
        raise ValueError(f"seed must be below 2^32, got {seed}")
    return RandomBlocks(block, per_query, seed=seed, length=length)


_WORD = 2**32 - 1


def _hash(word: Tensor) -> Tensor:
    """Permute the integers below 2^32 pseudo-randomly; intermediate products stay below 2^63."""
    word = word & _WORD
    for _ in range(2):
        word = ((word ^ (word >> 16)) * 0x45D9F3B) & _WORD
    return word ^ (word >> 16)


def _may_lack_own_key(positions: Positions) -> bool:
    """Return True if a query may have no key at its own position."""
    return not positions.is_aligned or positions.num_queries > positions.num_keys


def _ids_at(ids: Tensor, positions: Tensor, outside: int) -> Tensor:
    """Return ids[..., position] for each position, `outside` where there is none."""
    if ids.shape[-1] == 0:
        return torch.full((*ids.shape[:-1], *positions.shape), outside, device=ids.device)
    inside = ids[..., positions.clamp(0, ids.shape[-1] - 1)]
    return inside.masked_fill((positions < 0) | (positions >= ids.shape[-1]), outside)


def _select_rows(ids: Tensor, index: Tensor) -> Tensor:
    """Select the rows `index` of ids, if they have an axis of rows that differ."""
    return ids if ids.dim() < 2 or len(ids) == 1 else ids.index_select(0, index.to(ids.device))


def _to_ids(name: str, ids: Tensor | Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    tensor = ids if isinstance(ids, Tensor) else torch.tensor(ids)
    if tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex():
        raise TypeError(f"{name} must be integers (the document of each item), got {tensor.dtype}")
    if tensor.dim() < 1:
        raise ValueError(f"{name} must be (..., item), got a tensor without axes")
    return tensor.to(torch.int64, copy=True)
