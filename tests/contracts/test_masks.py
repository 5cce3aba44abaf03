"""Contract of all masks: definition, tiles, steps, rings, intervals, rules, rows."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from regard.attention.axes import align
from regard.attention.masks import (
    Mask,
    causal,
    dense,
    documents,
    padding,
    prefix,
    random_blocks,
    split_interval,
    window,
)
from regard.attention.positions import Positions

BATCH = 3
SIZES = [(5, 7), (7, 7), (7, 5), (1, 13), (13, 1)]
MOST = 13
LENGTHS = [7, 2, 4]
SORTED = [[0] * 3 + [1] * 10, [0] * 13, [2] * 1 + [3] * 4 + [7] * 8]
MIXED = [[1, 0, 1, 1, 2, 0, 0, 5, 1, 2, 2, 0, 1], [4] * 13, [2, 2, 1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2]]
QUERY_DOCUMENTS = [[1, 1, 0, 2, 5, 0, 7, 1, 0, 0, 2, 2, 1], [4, 3] * 6 + [4], [9] * 13]
HOLES = torch.rand(BATCH, MOST, MOST, generator=torch.Generator().manual_seed(3)) > 0.5

Definition = Callable[[int, int, int, int], bool]


class MaskCase(NamedTuple):
    build: Callable[[int, int], Mask]
    """Function from the numbers of queries and keys to the mask; most ignore them."""
    sees: Definition
    """True if query number i of row b, at position p, may attend to key j."""
    by_position: bool = True
    """True if it depends on the positions of queries and keys; else on the indices of queries."""
    interval: bool = True
    """True if it is a range of keys for each query."""


def hash_word(word: int) -> int:
    for _ in range(2):
        word = ((word ^ (word >> 16)) * 0x45D9F3B) % 2**32
    return word ^ (word >> 16)


def draw_blocks(block: int, count: int, per_query: int, seed: int) -> set[int]:
    """Draw the blocks for one of `count` blocks of queries, in Python integers."""
    state, blocks = hash_word(hash_word(block % 2**32) ^ seed), set()
    for number in range(per_query):
        top = count - per_query + number
        if top >= 0:
            choice = hash_word((state + number) % 2**32) % (top + 1)
            blocks.add(top if choice in blocks else choice)
    return blocks


CASES = {
    "causal": MaskCase(lambda m, n: causal(), lambda b, i, p, j: j <= p),
    "padding": MaskCase(lambda m, n: padding(LENGTHS), lambda b, i, p, j: j < LENGTHS[b]),
    "dense": MaskCase(
        lambda m, n: dense(HOLES[:, :m, :n]),
        lambda b, i, p, j: bool(HOLES[b, i, j]),
        by_position=False,
        interval=False,
    ),
    "window": MaskCase(lambda m, n: window(3), lambda b, i, p, j: p - 3 < j <= p),
    "window ahead": MaskCase(
        lambda m, n: window(6, ahead=2), lambda b, i, p, j: p - 4 < j <= p + 2
    ),
    "window of one": MaskCase(lambda m, n: window(1), lambda b, i, p, j: j == p),
    "prefix": MaskCase(lambda m, n: prefix(LENGTHS), lambda b, i, p, j: j <= p or j < LENGTHS[b]),
    "documents in order": MaskCase(
        lambda m, n: documents(torch.tensor(SORTED)),
        lambda b, i, p, j: 0 <= p < 13 and SORTED[b][p] == SORTED[b][j],
    ),
    "documents mixed": MaskCase(
        lambda m, n: documents(MIXED),
        lambda b, i, p, j: 0 <= p < 13 and MIXED[b][p] == MIXED[b][j],
        interval=False,
    ),
    "documents of one row": MaskCase(
        lambda m, n: documents(SORTED[2]),
        lambda b, i, p, j: 0 <= p < 13 and SORTED[2][p] == SORTED[2][j],
    ),
    "documents of two": MaskCase(
        lambda m, n: documents(torch.tensor(QUERY_DOCUMENTS)[:, :m], SORTED[2]),
        lambda b, i, p, j: QUERY_DOCUMENTS[b][i] == SORTED[2][j],
        by_position=False,
    ),
    "random blocks": MaskCase(
        lambda m, n: random_blocks(2, 2, seed=5),
        lambda b, i, p, j: j // 2 in draw_blocks(p // 2, p // 2 + 1, 2, 5),
        interval=False,
    ),
    "random blocks of 11": MaskCase(
        lambda m, n: random_blocks(3, 2, seed=9, length=11),
        lambda b, i, p, j: j // 3 in draw_blocks(p // 3, 4, 2, 9),
        interval=False,
    ),
    "and": MaskCase(
        lambda m, n: causal() & padding(LENGTHS), lambda b, i, p, j: j <= p and j < LENGTHS[b]
    ),
    "and window": MaskCase(
        lambda m, n: window(5) & documents(SORTED) & padding(LENGTHS),
        lambda b, i, p, j: p - 5 < j <= p and SORTED[b][p] == SORTED[b][j] and j < LENGTHS[b],
    ),
    "and mixed": MaskCase(
        lambda m, n: (window(5) & documents(MIXED)) & ~padding(LENGTHS),
        lambda b, i, p, j: p - 5 < j <= p and MIXED[b][p] == MIXED[b][j] and j >= LENGTHS[b],
        interval=False,
    ),
    "or": MaskCase(
        lambda m, n: random_blocks(2, 1, seed=1) | window(2),
        lambda b, i, p, j: p - 2 < j <= p or j // 2 in draw_blocks(p // 2, p // 2 + 1, 1, 1),
        interval=False,
    ),
    "not": MaskCase(
        lambda m, n: ~(window(3) & padding(LENGTHS)),
        lambda b, i, p, j: not (p - 3 < j <= p and j < LENGTHS[b]),
        interval=False,
    ),
}
every = pytest.mark.parametrize("name", CASES)


def expected_mask(name: str, positions: Positions) -> Tensor:
    """Evaluate the definition of the case pair by pair: (batch, query, key)."""
    rows = range(positions.num_queries) if positions.rows is None else range(*positions.rows)
    start = (
        positions.num_keys - positions.num_queries
        if positions.start is None
        else int(positions.start)
    )
    keys = (
        range(positions.num_keys)
        if positions.key_positions is None
        else positions.key_positions.tolist()
    )
    sees = CASES[name].sees
    table = [[[sees(b, i, start + i, j) for j in keys] for i in rows] for b in range(BATCH)]
    return torch.tensor(table).view(BATCH, len(rows), positions.num_keys)


def materialize_mask(mask: Mask, positions: Positions) -> Tensor:
    """Return the mask as a tensor, expanded to all axes."""
    tensor = mask.materialize(positions)
    assert tensor.dtype == torch.bool
    assert tensor.device == positions.device
    return align(tensor, 3).expand(BATCH, positions.num_rows, positions.num_keys).cpu()


def positions_of(name: str, device: torch.device) -> list[tuple[Mask, Positions]]:
    """Return the mask at positions of every size: whole, a tile, a start (or tensor), a ring."""
    cases = []
    for queries, keys in SIZES:
        full = Positions(queries, keys, device)
        variants = [full, full.tile(queries // 2, queries)]
        if CASES[name].by_position:
            ring = torch.randperm(keys, generator=torch.Generator().manual_seed(keys)).to(device)
            later = full._replace(start=min(2, MOST - queries))
            variants += [later, later.tile(0, queries // 2 + 1), later._replace(key_positions=ring)]
            variants += [
                position._replace(start=torch.tensor(position.start, device=device))
                for position in variants[2:]
            ]
        mask = CASES[name].build(queries, keys)
        if name == "dense":
            mask = dense(HOLES[:, :queries, :keys].to(device))
        cases += [(mask, positions) for positions in variants]
    return cases


@every
def test_mask_equals_its_definition(name, device):
    for mask, positions in positions_of(name, device):
        assert torch.equal(materialize_mask(mask, positions), expected_mask(name, positions)), (
            mask,
            positions,
        )


@every
def test_interval_equals_the_mask(name, device):
    for mask, positions in positions_of(name, device):
        if positions.key_positions is not None:
            continue  # an interval is of keys in their order
        interval = mask.interval(positions)
        assert (interval is not None) == CASES[name].interval, (mask, positions)
        if interval is not None:
            first, last = (align(bound, 3) for bound in interval)
            assert first.shape[-1] == last.shape[-1] == 1
            inside = (positions.key >= first) & (positions.key < last)
            assert torch.equal(
                inside.expand(BATCH, positions.num_rows, -1).cpu(),
                materialize_mask(mask, positions),
            ), (
                mask,
                positions,
            )


@every
def test_split_parts_combine_to_the_mask(name, device):
    for mask, positions in positions_of(name, device):
        interval, rest = split_interval(mask, positions)
        table = torch.ones(BATCH, positions.num_rows, positions.num_keys, dtype=torch.bool)
        if interval is not None:
            first, last = (align(bound, 3) for bound in interval)
            table = table & ((positions.key >= first) & (positions.key < last)).cpu()
        if rest is not None:
            table = table & materialize_mask(rest, positions)
        assert torch.equal(table, materialize_mask(mask, positions)), (mask, positions)


@every
def test_rule_on_all_indices_equals_the_mask(name, device):
    for mask, positions in positions_of(name, device):
        if positions.key_positions is not None:
            continue  # a rule is of keys in their order
        sizes = (BATCH, 2, positions.num_rows, positions.num_keys)
        index = torch.meshgrid(
            *(torch.arange(size, device=device) for size in sizes), indexing="ij"
        )
        table = mask.rule(positions)(*index)
        for head in range(2):
            assert torch.equal(table[:, head].cpu(), materialize_mask(mask, positions)), (
                mask,
                positions,
            )


@every
def test_select_selects_rows(name, device):
    index = torch.tensor([2, 0, 2, 2])
    mask, positions = positions_of(name, device)[0]
    tensor = mask.select(index.to(device) if name == "dense" else index).materialize(positions)
    tensor = align(tensor, 3).expand(4, positions.num_queries, positions.num_keys)
    assert torch.equal(tensor.cpu(), materialize_mask(mask, positions)[index])


@every
def test_rows_reported_as_not_fully_masked_are_not(name, device):
    for mask, positions in positions_of(name, device):
        if not mask.may_have_fully_masked_rows(positions):
            assert materialize_mask(mask, positions).any(-1).all(), (mask, positions)
        if mask.includes_first_key and positions.is_aligned:
            allowed = materialize_mask(mask, positions)
            assert torch.equal(allowed.any(-1), allowed[..., 0]), (mask, positions)


@pytest.mark.parametrize(
    "name",
    ["causal", "window", "window ahead", "prefix", "documents in order", "documents mixed", "or"],
)
def test_a_query_that_attends_to_itself_is_known_not_to_be_fully_masked(name):
    mask = CASES[name].build(5, 7)
    assert not mask.may_have_fully_masked_rows(Positions(5, 7, torch.device("cpu")))
    assert mask.may_have_fully_masked_rows(Positions(7, 5, torch.device("cpu")))


@every
def test_no_allowed_pair_is_outside_the_band(name, device):
    for mask, positions in positions_of(name, device):
        if mask.band is not None and positions.key_positions is None:
            distance = (positions.key - positions.query).cpu()
            outside = (distance < -mask.band[0]) | (distance > mask.band[1])
            assert not (materialize_mask(mask, positions) & outside).any()
    assert (mask.band is not None) == (name == "and mixed" or "window" in name)


@every
def test_mask_has_a_picture_and_a_repr(name):
    mask = CASES[name].build(5, 7)
    picture = mask.picture(5, 7)
    assert picture.heading == repr(mask)
    numbers = torch.stack([panel.numbers for panel in picture.panels])
    assert torch.equal(
        (numbers > 0).expand(BATCH, 5, 7),
        materialize_mask(mask, Positions(5, 7, torch.device("cpu"))),
    )
