"""What every mask must hold: by its definition, in tiles, steps, rings, as an interval, as a rule, by rows."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from regard.attention.axes import align
from regard.attention.masks import Mask, causal, dense, padding, split
from regard.attention.patterns import documents, prefix, random_blocks, window
from regard.attention.places import Places

BATCH = 3
SIZES = [(5, 7), (7, 7), (7, 5), (1, 13), (13, 1)]
MOST = 13
LENGTHS = [7, 2, 4]
SORTED = [[0] * 3 + [1] * 10, [0] * 13, [2] * 1 + [3] * 4 + [7] * 8]
MIXED = [[1, 0, 1, 1, 2, 0, 0, 5, 1, 2, 2, 0, 1], [4] * 13, [2, 2, 1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2]]
ASKED = [[1, 1, 0, 2, 5, 0, 7, 1, 0, 0, 2, 2, 1], [4, 3] * 6 + [4], [9] * 13]
HOLES = torch.rand(BATCH, MOST, MOST, generator=torch.Generator().manual_seed(3)) > 0.5

Definition = Callable[[int, int, int, int], bool]


class Case(NamedTuple):
    build: Callable[[int, int], Mask]
    """The mask for so many queries and keys; most do not care."""
    sees: Definition
    """May the query number i of row b, at place p, attend to key j?"""
    by_place: bool = True
    """Whether it goes by the places of both; else by the numbers of queries."""
    interval: bool = True
    """Whether it is a range of keys for each query."""


def mixed(word: int) -> int:
    for _ in range(2):
        word = ((word ^ (word >> 16)) * 0x45D9F3B) % 2**32
    return word ^ (word >> 16)


def drawn(block: int, count: int, per_query: int, seed: int) -> set[int]:
    """Blocks drawn for a block of queries of `count`, in Python's own integers."""
    state, chosen = mixed(mixed(block % 2**32) ^ seed), set()
    for number in range(per_query):
        top = count - per_query + number
        if top >= 0:
            choice = mixed((state + number) % 2**32) % (top + 1)
            chosen.add(top if choice in chosen else choice)
    return chosen


CASES = {
    "causal": Case(lambda m, n: causal(), lambda b, i, p, j: j <= p),
    "padding": Case(lambda m, n: padding(LENGTHS), lambda b, i, p, j: j < LENGTHS[b]),
    "dense": Case(
        lambda m, n: dense(HOLES[:, :m, :n]), lambda b, i, p, j: bool(HOLES[b, i, j]), by_place=False, interval=False
    ),
    "window": Case(lambda m, n: window(3), lambda b, i, p, j: p - 3 < j <= p),
    "window ahead": Case(lambda m, n: window(6, ahead=2), lambda b, i, p, j: p - 4 < j <= p + 2),
    "window of one": Case(lambda m, n: window(1), lambda b, i, p, j: j == p),
    "prefix": Case(lambda m, n: prefix(LENGTHS), lambda b, i, p, j: j <= p or j < LENGTHS[b]),
    "documents in order": Case(
        lambda m, n: documents(torch.tensor(SORTED)), lambda b, i, p, j: 0 <= p < 13 and SORTED[b][p] == SORTED[b][j]
    ),
    "documents mixed": Case(
        lambda m, n: documents(MIXED),
        lambda b, i, p, j: 0 <= p < 13 and MIXED[b][p] == MIXED[b][j],
        interval=False,
    ),
    "documents of one row": Case(
        lambda m, n: documents(SORTED[2]), lambda b, i, p, j: 0 <= p < 13 and SORTED[2][p] == SORTED[2][j]
    ),
    "documents of two": Case(
        lambda m, n: documents(torch.tensor(ASKED)[:, :m], SORTED[2]),
        lambda b, i, p, j: ASKED[b][i] == SORTED[2][j],
        by_place=False,
    ),
    "random blocks": Case(
        lambda m, n: random_blocks(2, 2, seed=5),
        lambda b, i, p, j: j // 2 in drawn(p // 2, p // 2 + 1, 2, 5),
        interval=False,
    ),
    "random blocks of 11": Case(
        lambda m, n: random_blocks(3, 2, seed=9, length=11),
        lambda b, i, p, j: j // 3 in drawn(p // 3, 4, 2, 9),
        interval=False,
    ),
    "and": Case(lambda m, n: causal() & padding(LENGTHS), lambda b, i, p, j: j <= p and j < LENGTHS[b]),
    "and window": Case(
        lambda m, n: window(5) & documents(SORTED) & padding(LENGTHS),
        lambda b, i, p, j: p - 5 < j <= p and SORTED[b][p] == SORTED[b][j] and j < LENGTHS[b],
    ),
    "and mixed": Case(
        lambda m, n: (window(5) & documents(MIXED)) & ~padding(LENGTHS),
        lambda b, i, p, j: p - 5 < j <= p and MIXED[b][p] == MIXED[b][j] and j >= LENGTHS[b],
        interval=False,
    ),
    "or": Case(
        lambda m, n: random_blocks(2, 1, seed=1) | window(2),
        lambda b, i, p, j: p - 2 < j <= p or j // 2 in drawn(p // 2, p // 2 + 1, 1, 1),
        interval=False,
    ),
    "not": Case(
        lambda m, n: ~(window(3) & padding(LENGTHS)),
        lambda b, i, p, j: not (p - 3 < j <= p and j < LENGTHS[b]),
        interval=False,
    ),
}
every = pytest.mark.parametrize("name", CASES)
by_place = pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.by_place])
every_size = pytest.mark.parametrize(("queries", "keys"), SIZES)


def defined(name: str, places: Places) -> Tensor:
    """The case's definition, pair by pair: (batch, query, key)."""
    rows = range(places.num_queries) if places.rows is None else range(*places.rows)
    start = places.num_keys - places.num_queries if places.start is None else int(places.start)
    keys = range(places.num_keys) if places.key_places is None else places.key_places.tolist()
    sees = CASES[name].sees
    table = [[[sees(b, i, start + i, j) for j in keys] for i in rows] for b in range(BATCH)]
    return torch.tensor(table).view(BATCH, len(rows), places.num_keys)


def seen(mask: Mask, places: Places) -> Tensor:
    """What the mask sees, all axes spelled out."""
    tensor = mask.see(places)
    assert tensor.dtype == torch.bool
    assert tensor.device == places.device
    return align(tensor, 3).expand(BATCH, places.num_rows, places.num_keys).cpu()


def ways(name: str, device: torch.device) -> list[tuple[Mask, Places]]:
    """The mask for every size, whole and as a tile; by place also with a start, a tensor for a start, and a ring."""
    found = []
    for queries, keys in SIZES:
        whole = Places(queries, keys, device)
        told = [whole, whole.tile(queries // 2, queries)]
        if CASES[name].by_place:
            ring = torch.randperm(keys, generator=torch.Generator().manual_seed(keys)).to(device)
            later = whole._replace(start=min(2, MOST - queries))
            told += [later, later.tile(0, queries // 2 + 1), later._replace(key_places=ring)]
            told += [place._replace(start=torch.tensor(place.start, device=device)) for place in told[2:]]
        mask = CASES[name].build(queries, keys)
        if name == "dense":
            mask = dense(HOLES[:, :queries, :keys].to(device))
        found += [(mask, places) for places in told]
    return found


@every
def test_mask_sees_what_its_definition_says(name, device):
    for mask, places in ways(name, device):
        assert torch.equal(seen(mask, places), defined(name, places)), (mask, places)


@every
def test_tile_is_rows_of_the_whole(name, device):
    mask, places = ways(name, device)[0]
    whole = seen(mask, places)
    tiles = [seen(mask, places.tile(first, last)) for first, last in ((0, 2), (2, 3), (3, 5))]
    assert torch.equal(torch.cat(tiles, 1), whole)


@by_place
def test_queries_one_at_a_time_over_a_growing_memory_see_what_the_whole_sees(name, device):
    mask = CASES[name].build(7, 7)
    whole = seen(mask, Places(7, 7, device))
    for i in range(7):
        assert torch.equal(seen(mask, Places(1, i + 1, device)), whole[:, i : i + 1, : i + 1])


@by_place
def test_order_of_the_keys_is_the_order_of_the_columns(name, device):
    mask, places = CASES[name].build(5, 7), Places(5, 7, device, start=2)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    assert torch.equal(
        seen(mask, places._replace(key_places=order.to(device))),
        seen(mask, places)[..., order],
    )


@every
def test_interval_is_what_is_seen(name, device):
    for mask, places in ways(name, device):
        interval = mask.interval(places)
        if places.key_places is not None:
            assert interval is None
            continue
        assert (interval is not None) == CASES[name].interval, (mask, places)
        if interval is not None:
            first, last = (align(bound, 3) for bound in interval)
            assert first.shape[-1] == last.shape[-1] == 1
            inside = (places.key >= first) & (places.key < last)
            assert torch.equal(inside.expand(BATCH, places.num_rows, -1).cpu(), seen(mask, places)), (mask, places)


@every
def test_split_is_the_mask_in_two(name, device):
    for mask, places in ways(name, device):
        interval, rest = split(mask, places)
        table = torch.ones(BATCH, places.num_rows, places.num_keys, dtype=torch.bool)
        if interval is not None:
            first, last = (align(bound, 3) for bound in interval)
            table = table & ((places.key >= first) & (places.key < last)).cpu()
        if rest is not None:
            table = table & seen(rest, places)
        assert torch.equal(table, seen(mask, places)), (mask, places)


@every
def test_rule_on_all_indices_is_what_is_seen(name, device):
    for mask, places in ways(name, device):
        sizes = (BATCH, 2, places.num_rows, places.num_keys)
        index = torch.meshgrid(*(torch.arange(size, device=device) for size in sizes), indexing="ij")
        table = mask.rule(places)(*index)
        for head in range(2):
            assert torch.equal(table[:, head].cpu(), seen(mask, places)), (mask, places)


@every
def test_select_takes_rows(name, device):
    index = torch.tensor([2, 0, 2, 2])
    mask, places = ways(name, device)[0]
    tensor = mask.select(index.to(device) if name == "dense" else index).see(places)
    tensor = align(tensor, 3).expand(4, places.num_queries, places.num_keys)
    assert torch.equal(tensor.cpu(), seen(mask, places)[index])


@every
def test_rows_that_are_said_to_be_open_are(name, device):
    for mask, places in ways(name, device):
        if not mask.may_have_closed_rows(places):
            assert seen(mask, places).any(-1).all(), (mask, places)


@pytest.mark.parametrize(
    "name", ["causal", "window", "window ahead", "prefix", "documents in order", "documents mixed", "or"]
)
def test_a_query_that_sees_itself_is_known_to_be_open(name):
    mask = CASES[name].build(5, 7)
    assert not mask.may_have_closed_rows(Places(5, 7, torch.device("cpu")))
    assert mask.may_have_closed_rows(Places(7, 5, torch.device("cpu")))


@every
def test_mask_that_hides_twice_is_the_mask(name, device):
    mask, places = ways(name, device)[0]
    assert torch.equal(seen(~~mask, places), seen(mask, places))
    assert torch.equal(seen(~mask, places), ~seen(mask, places))


@every
@every_size
def test_neither_is_both_hidden(name, queries, keys):
    places = Places(queries, keys, torch.device("cpu"))
    mask, other = CASES[name].build(queries, keys), causal()
    assert torch.equal(seen(~(mask | other), places), seen(~mask & ~other, places))
    assert torch.equal(seen(~(mask & other), places), seen(~mask | ~other, places))


@every
def test_mask_draws_itself_and_says_what_it_is(name):
    mask = CASES[name].build(5, 7)
    picture = mask.picture(5, 7)
    assert picture.heading == repr(mask)
    levels = torch.tensor([panel.levels for panel in picture.panels])
    assert torch.equal((levels > 0).expand(BATCH, 5, 7), seen(mask, Places(5, 7, torch.device("cpu"))))
