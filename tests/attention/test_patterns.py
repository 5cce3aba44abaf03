"""Windows, prefixes, documents, random blocks: values by hand, statistics, and refused inputs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.attend import attend
from regard.attention.masks import Mask, causal, documents, prefix, random_blocks, window
from regard.attention.positions import Positions
from tests.helpers import close

CPU = torch.device("cpu")


def draw_row(mask: Mask, queries: int, keys: int) -> list[str]:
    """Draw a mask that has one row."""
    (rows,) = mask.tensor(queries, keys, device=CPU)
    return ["".join("#" if allowed else "." for allowed in row) for row in rows.tolist()]


def test_positions_outside_the_ids_match_nothing():
    mask, positions = documents([0, 0, 1]), Positions(4, 5, CPU, start=1)
    assert (
        mask.materialize(positions).tolist()
        == [[True, True, False, False, False], [False, False, True, False, False]]
        + [[False] * 5] * 2
    )
    first, last = mask.interval(positions)
    assert (last - first).flatten().tolist() == [2, 1, 0, 0]
    assert not documents(torch.zeros(0, dtype=torch.int64)).materialize(positions).any()


def test_documents_are_an_interval_only_if_ids_of_keys_never_decrease():
    positions = Positions(3, 3, CPU)
    assert documents([0, 0, 1]).interval(positions) is not None
    assert documents([1, 1, 0]).interval(positions) is None
    assert documents([5, 0, 3], key_ids=[0, 3, 3]).interval(positions) is not None
    assert documents([0, 3, 5], key_ids=[0, 3, 1]).interval(positions) is None


def test_selected_documents_stay_an_interval():
    mask = documents([[0, 0, 1], [0, 1, 1]]).select(torch.tensor([1, 1, 0]))
    first, last = mask.interval(Positions(3, 3, CPU))
    assert first.squeeze(-1).tolist() == [[0, 1, 1], [0, 1, 1], [0, 0, 2]]
    assert last.squeeze(-1).tolist() == [[1, 3, 3], [1, 3, 3], [2, 2, 3]]


def test_selected_documents_select_the_rows_of_both():
    mask = documents([[1, 2], [2, 2]], [[1, 1, 2], [2, 1, 1]]).select(torch.tensor([1]))
    assert draw_row(mask, 2, 3) == ["#..", "#.."]


def test_packed_documents_equal_each_document_alone():
    sizes = [2, 5, 3]
    query, keys = torch.randn(10, 7, dtype=torch.float64), torch.randn(10, 7, dtype=torch.float64)
    values = torch.randn(10, 3, dtype=torch.float64)
    ids = [number for number, size in enumerate(sizes) for _ in range(size)]
    packed = attend(query, (keys, values), mask=documents(ids) & causal(), kernel="reference")
    parts = zip(*(x.split(sizes) for x in (query, keys, values)), strict=True)
    separate = [attend(q, (k, v), mask=causal(), kernel="reference") for q, k, v in parts]
    close(packed, torch.cat(separate))


def attended_blocks(mask: Mask, queries: int, keys: int, block: int) -> list[set[int]]:
    """Return the blocks of keys that each query attends to."""
    rows = mask.tensor(queries, keys)
    return [{j // block for j, allowed in enumerate(row) if allowed} for row in rows.tolist()]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_random_blocks_are_whole_distinct_blocks_of_the_given_number(
    block, per_query, seed, length
):
    mask = random_blocks(block, per_query, seed=seed, length=length)
    count = -(-length // block)
    table = mask.tensor(23, count * block)
    assert (table.sum(-1) == block * min(per_query, count)).all()
    for i, blocks in enumerate(attended_blocks(mask, 23, count * block, block)):
        assert len(blocks) == min(per_query, count)
        first = (i + count * block - 23) // block * block - (count * block - 23)
        if 0 <= first < i:
            assert torch.equal(table[i], table[first])


def test_random_blocks_without_a_length_are_drawn_from_the_past():
    for i, blocks in enumerate(attended_blocks(random_blocks(3, 2, seed=7), 60, 60, 3)):
        assert len(blocks) == min(2, i // 3 + 1)
        assert max(blocks) <= i // 3


def test_random_blocks_include_the_partial_last_block():
    mask = random_blocks(4, 3, seed=1, length=9)
    assert torch.equal(mask.tensor(9, 9), torch.ones(9, 9, dtype=torch.bool))
    single = random_blocks(4, 1, seed=3, length=9)
    widths = {(4 if 2 not in blocks else 1) for blocks in attended_blocks(single, 9, 9, 4)}
    assert set(single.tensor(9, 9).sum(-1).tolist()) == widths


def test_random_blocks_are_uniform_and_differ_by_seed():
    count, blocks, per_query = 4000, 10, 3
    table = random_blocks(1, per_query, seed=11, length=blocks).materialize(
        Positions(count, blocks, CPU, start=0)
    )
    expected = count * per_query / blocks
    spread = (expected * (1 - per_query / blocks)) ** 0.5
    assert ((table.sum(0) - expected).abs() < 4 * spread).all()
    # Two draws of 3 of 10 share 0.9 on average, whether of neighboring blocks or of neighboring
    # seeds.
    other = random_blocks(1, per_query, seed=12, length=blocks).materialize(
        Positions(count, blocks, CPU, start=0)
    )
    for pair in (table & other, table[1:] & table[:-1]):
        assert pair.sum(-1).double().mean() == pytest.approx(0.9, abs=0.05)


def test_random_blocks_exclude_empty_slots():
    positions = Positions(2, 4, CPU, start=0, key_positions=torch.tensor([0, 1, -1, -2]))
    assert random_blocks(1, 3, seed=0).materialize(positions).tolist() == [
        [True, False, False, False],
        [True, True, False, False],
    ]


def test_sparse_past_has_no_fully_masked_row():
    mask = random_blocks(2, 1, seed=0) | window(2)
    assert not mask.may_have_fully_masked_rows(Positions(7, 7, CPU))
    assert random_blocks(2, 1, seed=0).may_have_fully_masked_rows(Positions(7, 7, CPU))


@pytest.mark.usefixtures("no_shape_checks")
def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        window(0)
    with pytest.raises(ValueError, match="ahead must be at least 0, got -1"):
        window(3, ahead=-1)
    with pytest.raises(ValueError, match=r"ahead must be less than the size 3.*got 3"):
        window(3, ahead=3)
    with pytest.raises(TypeError, match="size must be an integer, got float"):
        window(3.0)
    with pytest.raises(TypeError, match="ahead must be an integer, got bool"):
        window(3, ahead=True)
    for name in ("block", "per_query", "length"):
        sizes = {"block": 2, "per_query": 2, "length": 7, name: 0}
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            random_blocks(sizes["block"], sizes["per_query"], seed=0, length=sizes["length"])
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        random_blocks(2, 2, seed=-1)
    with pytest.raises(ValueError, match="seed must be at most 4294967295, got 4294967296"):
        random_blocks(2, 2, seed=2**32)


@pytest.mark.usefixtures("no_shape_checks")
def test_wrong_lengths_and_ids_are_refused():
    with pytest.raises(TypeError, match=r"lengths must be integers.*float32"):
        prefix([1.5])
    with pytest.raises(ValueError, match="lengths must not be negative, got -1"):
        prefix([2, -1])
    with pytest.raises(TypeError, match=r"ids must be integers.*float32"):
        documents([0.0, 1.0])
    with pytest.raises(TypeError, match=r"key_ids must be integers.*bool"):
        documents([0], torch.tensor([True]))
    with pytest.raises(
        ValueError, match=r"ids must be \(\.\.\., item\), got a tensor without axes"
    ):
        documents(torch.tensor(3))


@pytest.mark.parametrize("method", ["materialize", "rule", "interval"])
def test_documents_refuse_reads_of_other_sizes(method):
    positions = Positions(2, 4, CPU)
    with pytest.raises(ValueError, match=r"ids must be \(\.\.\., 4 keys or more\), got \(3,\)"):
        getattr(documents([0, 1, 2]), method)(positions)
    with pytest.raises(ValueError, match=r"key_ids must be \(\.\.\., 4 keys or more\), got \(3,\)"):
        getattr(documents([0, 1], [0, 1, 2]), method)(positions)
    with pytest.raises(ValueError, match=r"ids must be \(\.\.\., 2 queries\), got \(3,\)"):
        getattr(documents([0, 1, 2], [0, 1, 2, 3]), method)(positions)
