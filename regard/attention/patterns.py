"""More masks: windows, prefixes, packed documents and random blocks.

    window(size, ahead)     query at place p sees key j  iff  p + ahead - size < j <= p + ahead
    prefix(lengths)         ... of row b                 iff  j <= p  or  j < lengths[b]
    documents(ids)          ... of row b                 iff  ids[b, j] = ids[b, p]
    random_blocks(block, r) ...                          iff  the block of j is one of r drawn for the block of p

All go by places, so one query of a decoding, a tile of a long read and the whole read see the same. They combine with
`&`, `|` and `~` as all masks do; `causal() & (window(64) | random_blocks(16, 3, seed=1))` reads a long past sparsely.

Source: beltagy2020 (windows), raffel2020 (prefixes), zaheer2020 (random blocks).
"""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.attention.axes import Rule, can_look_at, line_up, look_up
from regard.attention.masks import Interval, Mask, causal, dense, lengths_of, padding
from regard.attention.picture import save_as_asked, side_by_side
from regard.attention.places import Places
from regard.attention.sizes import check_whole

_NO_QUERY, _NO_KEY = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).min + 1
"""Documents of queries and of keys that lie outside the ids: they equal nothing."""


@final
class Window(Mask):
    """Query at place p sees `size` keys: p + ahead - size < j <= p + ahead."""

    def __init__(self, size: int, ahead: int = 0):
        self.size, self.ahead = size, ahead

    def see(self, places: Places) -> Bool[Tensor, "query key"]:
        """Places from ahead + 1 - size to ahead after the query's own."""
        return self._near(places.query, places.key)

    def interval(self, places: Places) -> Interval | None:
        """The window itself."""
        if places.key_places is not None:
            return None
        last = places.query + (self.ahead + 1)
        return last - self.size, last

    def rule(self, places: Places) -> Rule:
        """The window, with places made of indices."""
        if places.key_places is not None:
            return look_up(self.see(places))
        first = places.first
        return lambda row, head, query, key: self._near(query + first, key)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """Every row has the same mask."""
        return self

    def may_have_closed_rows(self, places: Places) -> bool:
        """A query sees at least the key at its own place, where there is one."""
        return _may_lack_its_key(places)

    def _near(self, query: Tensor, key: Tensor) -> Tensor:
        last = query + self.ahead
        return (key > last - self.size) & (key <= last)

    def __repr__(self) -> str:
        return f"window({self.size}, ahead={self.ahead})" if self.ahead else f"window({self.size})"


@final
class Prefix(Mask):
    """Query at place p of row b sees key j iff j <= p or j < lengths[b]."""

    def __init__(self, lengths: Int[Tensor, "..."]):
        self.lengths = lengths

    def see(self, places: Places) -> Bool[Tensor, "... query key"]:
        """Places up to the query's own, or up to the end of the prefix."""
        return places.key < self._last(places)

    def interval(self, places: Places) -> Interval | None:
        """0 <= j < max(p + 1, length)."""
        if places.key_places is not None:
            return None
        last = self._last(places)
        return torch.zeros_like(last), last

    def rule(self, places: Places) -> Rule:
        """The same, with places made of indices."""
        if places.key_places is not None:
            return look_up(self.see(places))
        first, length = places.first, look_up(self._column(places))
        return lambda row, head, query, key: (key <= query + first) | (key < length(row, head, query, key))

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """The lengths of those rows."""
        if self.lengths.dim() == 0 or len(self.lengths) == 1:  # one for all rows
            return self
        return Prefix(self.lengths.index_select(0, index.to(self.lengths.device)))

    def may_have_closed_rows(self, places: Places) -> bool:
        """A query sees at least the key at its own place, where there is one."""
        return _may_lack_its_key(places)

    def _last(self, places: Places) -> Tensor:
        return torch.maximum(*line_up(places.query + 1, self._column(places)))

    def _column(self, places: Places) -> Tensor:
        return self.lengths.to(places.device)[..., None, None]

    def __repr__(self) -> str:
        return f"prefix({self.lengths.tolist()})"


@final
class Documents(Mask):
    """A query sees the keys of its own document; see `documents`."""

    def __init__(
        self, ids: Int[Tensor, "... item"], key_ids: Int[Tensor, "... key"] | None = None, *, in_order: bool = False
    ):
        self.ids, self.key_ids, self.in_order = ids, key_ids, in_order

    def see(self, places: Places) -> Bool[Tensor, "... query key"]:
        """Where the ids are equal."""
        query, key = self._of_queries(places), self._of_keys(places)
        return torch.eq(*line_up(query.unsqueeze(-1), key.unsqueeze(-2)))

    def interval(self, places: Places) -> Interval | None:
        """From the first key of the document to the last, if ids of keys never decrease."""
        if places.key_places is not None or not self.in_order:
            return None
        self._check(places)
        query, key = self._of_queries(places), self._keys().to(places.device)
        query, key = line_up(query.unsqueeze(-1), key.unsqueeze(-2))
        leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        query = query.expand(*leading, *query.shape[-2:]).squeeze(-1).contiguous()
        key = key.expand(*leading, *key.shape[-2:]).squeeze(-2).contiguous()
        first, last = (torch.searchsorted(key, query, right=right).unsqueeze(-1) for right in (False, True))
        return first, last

    def rule(self, places: Places) -> Rule:
        """Where the ids are equal, looked up."""
        query = look_up(self._of_queries(places).unsqueeze(-1))
        key = look_up(self._of_keys(places).unsqueeze(-2))
        return lambda *index: query(*index) == key(*index)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """The ids of those rows, where there are rows."""
        key_ids = None if self.key_ids is None else _rows(self.key_ids, index)
        return Documents(_rows(self.ids, index), key_ids, in_order=self.in_order)

    def may_have_closed_rows(self, places: Places) -> bool:
        """Of one sequence a query sees at least the key at its own place, where there is one."""
        return self.key_ids is not None or _may_lack_its_key(places)

    def _keys(self) -> Tensor:
        return self.ids if self.key_ids is None else self.key_ids

    def _of_keys(self, places: Places) -> Tensor:
        """(..., key)"""
        self._check(places)
        return _at(self._keys().to(places.device), places.key, _NO_KEY)

    def _of_queries(self, places: Places) -> Tensor:
        """(..., query)"""
        ids = self.ids.to(places.device)
        if self.key_ids is None:
            return _at(ids, places.query.squeeze(-1), _NO_QUERY)
        if ids.shape[-1] != places.num_queries:
            raise ValueError(f"ids must be (..., {places.num_queries} queries), but are {tuple(ids.shape)}")
        return ids if places.rows is None else ids[..., places.rows[0] : places.rows[1]]

    def _check(self, places: Places) -> None:
        name, keys = "ids" if self.key_ids is None else "key_ids", self._keys()
        if places.aligned and keys.shape[-1] < places.num_keys:
            raise ValueError(f"{name} must be (..., {places.num_keys} keys or more), but are {tuple(keys.shape)}")

    def __repr__(self) -> str:
        sizes = [str(tuple(x.shape)) for x in (self.ids, self.key_ids) if x is not None]
        return f"documents({', '.join(sizes)})"


@final
class RandomBlocks(Mask):
    """The block of the query sees `per_query` blocks of keys, drawn by a hash; see `random_blocks`."""

    def __init__(self, block: int, per_query: int, *, seed: int, length: int | None = None):
        self.block, self.per_query, self.seed, self.length = block, per_query, seed, length

    def see(self, places: Places) -> Bool[Tensor, "query key"]:
        """Keys whose block is drawn for the block of the query."""
        return self._drawn(places.query, places.key)

    def rule(self, places: Places) -> Rule:
        """The same draw, from indices: nothing is looked up."""
        if places.key_places is not None:
            return look_up(self.see(places))
        first = places.first
        return lambda row, head, query, key: self._drawn(query + first, key)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """Every row has the same mask."""
        return self

    def _drawn(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether the block of the key at this place is drawn for the query's at that."""
        block = key // self.block
        seen = torch.zeros_like(query + key, dtype=torch.bool)
        for choice in self._choices(query // self.block):
            seen = seen | (block == choice)
        return seen & (key >= 0)

    def _choices(self, block: Tensor) -> list[Tensor]:
        """`per_query` different blocks of keys for each block of queries, -1 where there are not so many.

        Floyd's way to draw r of N without repetition: for top = N - r .. N - 1, draw one of 0 .. top, and take top
        itself if that is taken already.
        """
        count = block + 1 if self.length is None else torch.full_like(block, -(-self.length // self.block))
        state = _mixed(_mixed(block & _WORD) ^ self.seed)
        choices: list[Tensor] = []
        for number in range(self.per_query):
            top = count - self.per_query + number
            choice = _mixed(state + number) % (top + 1).clamp(min=1)
            for taken in choices:
                choice = torch.where(choice == taken, top, choice)
            choices.append(torch.where(top < 0, -1, choice))
        return choices

    def __repr__(self) -> str:
        length = "" if self.length is None else f", length={self.length}"
        return f"random_blocks({self.block}, {self.per_query}, seed={self.seed}{length})"


def window(size: int, ahead: int = 0) -> Mask:
    """Each query sees `size` keys, itself included, `ahead` of them after it: p + ahead - size < j <= p + ahead.

    `window(64)` is a causal read of the last 64 keys; `window(2 * w + 1, ahead=w)` sees w keys on either side.
    Raises: TypeError unless both are integers, ValueError unless size >= 1 and 0 <= ahead < size.
    Source: beltagy2020, section 3.1 (sliding window).
    """
    check_whole("size", size, 1)
    check_whole("ahead", ahead, 0)
    if ahead >= size:
        raise ValueError(f"ahead must be less than the size {size}, which includes the query, but is {ahead}")
    return Window(size, ahead)


def prefix(lengths: Int[Tensor, "..."] | Sequence[int]) -> Mask:
    """Causal, but the first lengths[b] keys of row b are seen by all its queries: j < max(p + 1, lengths[b]).

    So a prefix is read in both directions and what follows it from left to right (a prefix language model).
    Raises: TypeError if lengths are not integers, ValueError if one is negative.
    Source: raffel2020, section 3.2.1 (causal with prefix).
    """
    return Prefix(lengths_of("lengths", lengths))


def documents(
    ids: Int[Tensor, "... item"] | Sequence[int] | Sequence[Sequence[int]],
    key_ids: Int[Tensor, "... key"] | Sequence[int] | Sequence[Sequence[int]] | None = None,
) -> Mask:
    """Several documents packed in a row: a query sees the keys of its own document only, ids[p] = ids[j].

    ids, alone:     (item) or (batch, item), the document of each item; m queries are the last m of n items, or stand
                    where the read says; of longer ids the first n count, and what stands outside them sees nothing.
    ids, key_ids:   (..., query) and (..., key), for queries that read other items: query i has ids[i].
    Where the ids of keys never decrease along a row (which is looked at once, on a CPU), the mask is an interval, and
    kernels skip other documents altogether: number documents 0, 1, 2 ... and padding last.
    Tensors are copied.
    Raises: TypeError if ids are not integers, ValueError if they have no axis of items or are too few for the read.
    """
    of_queries = _ids("ids", ids)
    of_keys = None if key_ids is None else _ids("key_ids", key_ids)
    keys = of_queries if of_keys is None else of_keys
    # Looked at once, here: on an accelerator every look would wait for the device.
    in_order = can_look_at(keys) and bool((keys.diff() >= 0).all())
    return Documents(of_queries, of_keys, in_order=in_order)


def random_blocks(block: int, per_query: int, *, seed: int, length: int | None = None) -> Mask:
    """Each block of queries sees `per_query` different blocks of keys, drawn at random; a block is `block` places.

    length None:    drawn among the blocks up to the query's own, so a memory that grows shows the same to each query
                    as the whole; the first blocks have fewer to draw from, and see them all. Inside its own block a
                    query sees keys after itself: combine with causal() where that must not be.
    length n:       drawn among all blocks of n keys, before and after the query (encoders).
    The draw is a hash of (seed, block of the query, length), in integers: the same on every device, in every tile and
    step. The last block may be partial: it is drawn as often as others and shows the keys that it has. Blocks that a
    window shows already may be drawn too. Usually `random_blocks(...) | window(...)`.
    Raises: TypeError unless all are integers, ValueError unless block, per_query, length >= 1 and 0 <= seed < 2^32.
    Source: zaheer2020, section 2 (random attention) and appendix D (in blocks).
    """
    for name, value in (("block", block), ("per_query", per_query), ("length", 1 if length is None else length)):
        check_whole(name, value, 1)
    check_whole("seed", seed, 0)
    if seed > _WORD:
        raise ValueError(f"seed must be below 2^32, but is {seed}")
    return RandomBlocks(block, per_query, seed=seed, length=length)


_WORD = 2**32 - 1


def _mixed(word: Tensor) -> Tensor:
    """A permutation of the numbers below 2^32 that leaves no visible order; its products stay below 2^63."""
    word = word & _WORD
    for _ in range(2):
        word = ((word ^ (word >> 16)) * 0x45D9F3B) & _WORD
    return word ^ (word >> 16)


def _may_lack_its_key(places: Places) -> bool:
    """Whether some query may stand where there is no key."""
    return not places.aligned or places.num_queries > places.num_keys


def _at(ids: Tensor, places: Tensor, outside: int) -> Tensor:
    """ids[..., place] of each place, `outside` where there is none."""
    if ids.shape[-1] == 0:
        return torch.full((*ids.shape[:-1], *places.shape), outside, device=ids.device)
    found = ids[..., places.clamp(0, ids.shape[-1] - 1)]
    return found.masked_fill((places < 0) | (places >= ids.shape[-1]), outside)


def _rows(ids: Tensor, index: Tensor) -> Tensor:
    """The rows `index` of ids, if they have rows that differ."""
    return ids if ids.dim() < 2 or len(ids) == 1 else ids.index_select(0, index.to(ids.device))


def _ids(name: str, ids: Tensor | Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    tensor = ids if isinstance(ids, Tensor) else torch.tensor(ids)
    if tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex():
        raise TypeError(f"{name} must be integers (the document of each item), but have dtype {tensor.dtype}")
    if tensor.dim() < 1:
        raise ValueError(f"{name} must be (..., item), but have no axes")
    return tensor.to(torch.int64, copy=True)


if __name__ == "__main__":
    _PACKED = documents([0] * 5 + [1] * 7 + [2] * 6)
    _BLOCKS = random_blocks(3, 1, seed=2, length=18)
    _STRIPES = dense(torch.arange(18).outer(torch.arange(18)) % 4 < 2)
    _SHOWN = {
        "causal()": causal(),
        "padding([11])": padding([11]),
        "window(5)": window(5),
        "window(7, ahead=3)": window(7, ahead=3),
        "prefix([6])": prefix([6]),
        "documents([0, 0, 0, 0, 0, 1, 1, ...])": _PACKED,
        "random_blocks(3, 1, seed=2, length=18)": _BLOCKS,
        "dense(tensor)": _STRIPES,
        "causal() & padding([11])": causal() & padding([11]),
        "causal() & documents(ids)": causal() & _PACKED,
        "random_blocks(...) | window(5, ahead=2)": _BLOCKS | window(5, ahead=2),
        "causal() & ~window(5)": causal() & ~window(5),
    }
    save_as_asked(side_by_side([mask.picture(18, 18, title=name) for name, mask in _SHOWN.items()]), "masks.svg")
