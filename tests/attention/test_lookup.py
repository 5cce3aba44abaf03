"""A memory as a key-value store, against Python dictionaries and against hard attention."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

import regard
from regard.attention.memory import Memory, lookup
from tests.helpers import close

KEY_DIM, VALUE_DIM = 3, 2


@pytest.fixture(params=["pair by pair", "sorted"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Find equal keys pair by pair, and by sorting, whatever their number."""
    monkeypatch.setattr(lookup, "_MAX_ELEMENTS", 10**9 if request.param == "pair by pair" else 0)
    return request.param


def empty(*leading: int) -> Memory:
    return Memory(torch.zeros(*leading, 0, KEY_DIM), torch.zeros(*leading, 0, VALUE_DIM))


def key(number: int) -> Tensor:
    """Return a vector of few numbers, so that different keys agree in some of them."""
    return torch.tensor([float(number % 2), float(number // 2 % 3), float(number // 6)])


def value(number: int) -> Tensor:
    return torch.tensor([float(number), -0.5 * number])


operations = st.lists(
    st.tuples(
        st.sampled_from(["put", "delete"]), st.lists(st.integers(0, 11), min_size=1, max_size=5)
    ),
    max_size=8,
)


@pytest.mark.usefixtures("way")
@settings(max_examples=20)
@given(rows=st.lists(operations, min_size=1, max_size=3))
def test_rows_are_dictionaries(rows) -> None:
    count, written = len(rows), 0
    memory, stores = empty(count), [{} for _ in rows]
    for turn in range(max(map(len, rows))):
        numbers = [
            row[turn][1] if turn < len(row) and row[turn][0] == "put" else [0] for row in rows
        ]
        size = max(map(len, numbers))
        numbers = [(row * size)[:size] for row in numbers]
        values = [[written + 10 * i + j for j in range(size)] for i in range(count)]
        written += 100
        memory = memory.put(
            torch.stack([torch.stack([key(n) for n in row]) for row in numbers]),
            torch.stack([torch.stack([value(n) for n in row]) for row in values]),
        )
        for store, row, new in zip(stores, numbers, values, strict=True):
            store.update(zip(row, new, strict=True))
        if any(turn < len(row) and row[turn][0] == "delete" for row in rows):
            removed = [next(iter(store)) for store in stores]
            memory = memory.delete(torch.stack([key(n) for n in removed]))
            for store, number in zip(stores, removed, strict=True):
                del store[number]
    everything = torch.stack([key(n) for n in range(12)]).expand(count, 12, KEY_DIM)
    present = torch.tensor([[n in store for n in range(12)] for store in stores])
    assert torch.equal(memory.contains(everything), present)
    assert memory.counts.tolist() == [len(store) for store in stores]
    found = memory.get(everything, -7.0)
    for row, store in enumerate(stores):
        for n in range(12):
            assert torch.equal(
                found[row, n], value(store[n]) if n in store else torch.full((VALUE_DIM,), -7.0)
            )
        kept = memory.keys[row, : len(store)]
        assert torch.equal(
            kept, torch.stack([key(n) for n in store]) if store else kept
        )  # a dictionary's order


def test_one_pair_at_a_time_and_in_and_len() -> None:
    memory = empty()
    assert len(memory) == 0
    assert key(1) not in memory
    memory = memory.put(key(1), value(5)).put(key(2), value(6))
    other = memory.put(key(1), value(7))
    assert (len(memory), len(other)) == (2, 2)
    assert torch.equal(memory[key(1)], value(5))  # a memory is a value: `put` changes no other
    assert torch.equal(other[key(1)], value(7))
    assert key(2) in memory.delete(key(1))
    assert key(1) not in memory.delete(key(1))
    assert len(memory.delete(key(1)).put(key(1), value(1))) == 2


def test_missing_keys_are_named_or_get_the_default() -> None:
    memory = empty(2).put(torch.stack([key(1), key(2)]), torch.stack([value(1), value(2)]))
    queries = torch.stack([key(1), key(1)])
    with pytest.raises(
        KeyError, match="queries must be in the memory, but number 0 of row 1 is not"
    ):
        memory[queries]
    with pytest.raises(KeyError, match="keys must be in the memory, but number 0 of row 1 is not"):
        memory.delete(queries)
    assert torch.equal(
        memory.get(queries, torch.tensor([8.0, 9.0])), torch.tensor([[1.0, -0.5], [8.0, 9.0]])
    )
    assert memory.contains(queries).tolist() == [True, False]
    assert queries not in memory
    assert 3 not in memory
    with pytest.raises(KeyError, match="number 0 is not"):
        empty()[key(1)]


def test_threshold_decides_what_is_missing() -> None:
    memory = empty().put(torch.eye(3), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    query = torch.tensor([0.1, 0.7, 0.2])
    assert torch.equal(memory.get(query, score=regard.Dot()), torch.tensor([3.0, 4.0]))
    assert torch.equal(
        memory.get(query, score=regard.Dot(), threshold=0.7), torch.tensor([3.0, 4.0])
    )
    with pytest.raises(KeyError, match="number 0 is not"):
        memory.get(query, score=regard.Dot(), threshold=0.71)
    assert torch.equal(memory.get(query, 0, score=regard.Dot(), threshold=0.71), torch.zeros(2))
    with pytest.raises(KeyError):
        empty().get(query, score=regard.Dot())
    with pytest.raises(ValueError, match="threshold must be None without a score"):
        memory.get(query, threshold=0.5)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_hard_read_is_hard_attention(dtype) -> None:
    keys = normalize(torch.randn(2, 5, 9, 4, dtype=torch.float64), dim=-1).to(dtype)
    values, lengths = torch.randn(2, 5, 9, 3, dtype=dtype), torch.tensor([9, 6])
    memory = Memory(keys, values, regard.padding(lengths))
    queries = torch.randn(2, 5, 7, 4, dtype=dtype)
    expected = regard.attend(queries, memory, score=regard.Dot(), choice=regard.Hard())
    assert torch.equal(memory.get(queries, score=regard.Dot()), expected)
    if (
        dtype == torch.float64
    ):  # a unit vector's best match is itself: equality is hard attention with a cosine
        own = keys[:, :, :6]
        assert torch.equal(
            memory[own], regard.attend(own, memory, score=regard.Cosine(), choice=regard.Hard())
        )


def test_soft_read_of_a_store_is_the_softmax_of_its_pairs() -> None:
    memory = (
        empty(2)
        .put(torch.randn(2, 5, KEY_DIM), torch.randn(2, 5, VALUE_DIM))
        .put(torch.stack([key(3), key(3)]), torch.randn(2, VALUE_DIM))
    )
    memory = memory.delete(torch.stack([memory.keys[0, 1], key(3)])).put(
        memory.keys[:, :1], torch.ones(2, 1, VALUE_DIM)
    )
    query = torch.randn(2, 4, KEY_DIM)
    for row in range(2):
        weights = (1.5 * query[row] @ memory.keys[row, :5].T).softmax(-1)
        close(
            regard.attend(query, memory, score=regard.Dot(), choice=regard.Soft(1.5))[row],
            weights @ memory.values[row, :5],
        )


@pytest.mark.usefixtures("way")
def test_store_of_unequal_rows_is_selected_masked_and_read() -> None:
    keys, values = torch.randn(2, 4, KEY_DIM), torch.randn(2, 4, VALUE_DIM)
    keys[1, 2:] = keys[1, :2]  # two of the new keys are equal
    memory = empty(2).put(keys, values)
    assert memory.counts.tolist() == [4, 2]
    with pytest.raises(
        ValueError, match=r"rows must have equal numbers of pairs for len\(\), got \[2, 4\]"
    ):
        len(memory)
    assert torch.equal(memory[keys[:, 2:]], values[:, 2:])
    query = torch.randn(2, 3, KEY_DIM)
    alone = Memory(keys[1:, :2], values[1:, 2:])
    close(regard.attend(query, memory)[1:], regard.attend(query[1:], alone))
    swapped = memory.select(torch.tensor([1, 0, 1]))
    assert swapped.counts.tolist() == [2, 4, 2]
    close(regard.attend(query[[1, 0, 1]], swapped), regard.attend(query, memory)[[1, 0, 1]])
    grown = memory.put(torch.stack([key(1), key(1)]), torch.ones(2, VALUE_DIM))
    assert grown.counts.tolist() == [5, 3]
    assert torch.equal(grown.get(torch.stack([key(1), key(1)])), torch.ones(2, VALUE_DIM))
    assert len(grown.delete(torch.stack([key(1), key(1)])).select(torch.tensor([0]))) == 4


@pytest.mark.usefixtures("way")
def test_hidden_and_nan_keys_are_not_in_the_store() -> None:
    keys = torch.stack([key(1), torch.full((KEY_DIM,), float("nan")), key(2), key(1)])
    memory = Memory(
        keys, torch.arange(8.0).view(4, 2), regard.dense(torch.tensor([[False, True, True, True]]))
    )
    assert memory.contains(keys).tolist() == [True, False, True, True]
    assert torch.equal(memory[key(1)], torch.tensor([6.0, 7.0]))
    assert len(memory) == 3
    with pytest.raises(ValueError, match="keys must not hold NaN"):
        memory.put(keys[1], value(1))


def test_ten_thousand_pairs_are_stored_found_replaced_and_removed() -> None:
    keys, values = torch.randn(10_000, 16), torch.randn(10_000, 5)
    memory = empty_of(16, 5).put(keys, values)
    order = torch.randperm(10_000)
    assert len(memory) == 10_000
    assert torch.equal(memory[keys[order]], values[order])
    memory = memory.put(keys[order[:500]], -values[order[:500]]).delete(keys[order[500:800]])
    assert len(memory) == 9_700
    assert torch.equal(memory[keys[order[:500]]], -values[order[:500]])
    assert not memory.contains(keys[order[500:800]]).any()
    assert torch.equal(memory[keys[order[800:]]], values[order[800:]])


def empty_of(key_dim: int, value_dim: int) -> Memory:
    return Memory(torch.zeros(0, key_dim), torch.zeros(0, value_dim))


def test_values_have_gradients_through_put_and_get() -> None:
    old = torch.randn(3, VALUE_DIM, requires_grad=True)
    new = torch.randn(2, VALUE_DIM, requires_grad=True)
    keys = torch.stack([key(n) for n in range(4)])
    memory = Memory(keys[:3], old).put(keys[2:], new)
    memory[keys].sum().backward()
    assert old.grad is not None
    assert new.grad is not None
    assert old.grad[:, 0].tolist() == [1, 1, 0]
    assert new.grad[:, 0].tolist() == [1, 1]


def test_putting_nothing_changes_nothing() -> None:
    memory = empty().put(key(1), value(1))
    assert len(memory.put(torch.zeros(0, 3), torch.zeros(0, 2))) == 1
    assert len(empty().put(torch.zeros(0, 3), torch.zeros(0, 2))) == 0


def test_memory_remains_a_value() -> None:
    memory = empty().put(key(1), value(1))
    assert torch.equal(copy.deepcopy(memory)[key(1)], value(1))
    longer = memory.extend(key(2)[None], value(2)[None])
    assert torch.equal(longer[key(2)], value(2))
    assert len(memory) == 1


def test_what_does_not_fit_is_refused(no_shape_checks) -> None:
    memory, zeros = empty().put(key(1), value(1)), torch.zeros
    mapped = memory.map_keys_with(regard.General(3, 3, 5))
    for change, message in (
        (lambda: memory.put(zeros(4), zeros(2)), r"new keys must be \(new, 3\), got \(1, 4\)"),
        (lambda: memory.put(zeros(1, 1, 3), zeros(2)), r"keys must be \(item, dim\) or \(dim\)"),
        (lambda: memory.put(zeros(2, 3), zeros(1, 2)), "as many new values as keys"),
        (lambda: memory.get(zeros(4)), "queries must have the size of the keys, 3, got 4"),
        (lambda: memory.get(zeros(3).double()), "dtype of the keys, torch.float32"),
        (lambda: mapped.get(zeros(3)), "must not be mapped"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            change()
