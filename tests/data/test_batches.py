"""Plans are a pure function of arguments within the budget; tensors hold exactly the ids."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batches import (
    EncodedPairs,
    Ragged,
    TokenBatches,
    count_target_tokens,
    pad,
    pad_arrays,
    plan_batches,
)
from regard.data.tokenizer import BOS, EOS, PAD, Ends
from regard.errors import UserError

LENGTHS = st.lists(st.tuples(st.integers(1, 23), st.integers(1, 23)), max_size=60)
SEEDS = st.integers(0, 2**40)
SEQUENCES = st.lists(st.lists(st.integers(4, 30_000), max_size=7), min_size=1, max_size=13)


def some_lengths(num_pairs: int) -> list[tuple[int, int]]:
    generator = np.random.default_rng(7)
    source = generator.integers(2, 41, num_pairs)
    target = np.maximum(1, source + generator.integers(-5, 6, num_pairs))
    return list(zip(source.tolist(), target.tolist(), strict=True))


def some_pairs(num_pairs: int) -> EncodedPairs:
    generator = np.random.default_rng(11)
    sides = []
    for side in zip(*some_lengths(num_pairs), strict=True):
        sides.append([generator.integers(4, 99, length).tolist() for length in side])
    return EncodedPairs.from_sequences(*sides)


@given(LENGTHS, st.integers(23, 200), SEEDS, st.integers(0, 1000))
def test_plan_has_each_index_once_within_the_budget(lengths, batch_tokens, seed, epoch):
    plan = plan_batches(lengths, batch_tokens=batch_tokens, seed=seed, epoch=epoch)
    assert sorted(index for batch in plan for index in batch) == list(range(len(lengths)))
    for batch in plan:
        assert batch
        assert len(batch) * max(max(lengths[index]) for index in batch) <= batch_tokens
    assert plan_batches(lengths, batch_tokens=batch_tokens, seed=seed, epoch=epoch) == plan


@given(SEEDS, st.integers(0, 1000))
def test_plan_differs_between_epochs_and_between_seeds(seed, epoch):
    lengths = some_lengths(150)
    plan = plan_batches(lengths, batch_tokens=200, seed=seed, epoch=epoch)
    assert plan_batches(lengths, batch_tokens=200, seed=seed, epoch=epoch + 1) != plan
    assert plan_batches(lengths, batch_tokens=200, seed=seed + 1, epoch=epoch) != plan


def test_plan_shuffles_pairs_of_equal_lengths_in_each_epoch():
    lengths = [(5, 7)] * 60
    plans = [plan_batches(lengths, batch_tokens=70, seed=3, epoch=epoch) for epoch in (0, 1)]
    companions = [next(set(batch) for batch in plan if 0 in batch) for plan in plans]
    assert companions[0] != companions[1]


def test_plan_never_changes():
    """A run on another machine, or with another version of NumPy, must have the same order."""
    lengths = [(3, 5), (2, 2), (7, 4), (3, 5), (1, 6), (2, 3), (3, 5)]
    plan = plan_batches(lengths, batch_tokens=12, seed=5, epoch=2)
    assert plan == [(1, 5), (3, 4), (6, 0), (2,)]
    assert plan_batches([], batch_tokens=5, seed=0, epoch=0) == []


def test_plan_names_the_pair_that_no_batch_can_hold():
    with pytest.raises(UserError, match=r"pair 1 has 3 source and 14 target tokens, .* 13"):
        plan_batches([(5, 7), (3, 14), (2, 2)], batch_tokens=13, seed=0, epoch=0)


def test_plan_leaves_little_padding():
    lengths = some_lengths(3000)
    plan, positions = plan_batches(lengths, batch_tokens=2000, seed=0, epoch=0), 0
    for batch in plan:
        source, target = np.array([lengths[i] for i in batch]).max(0)
        positions += len(batch) * int(source + target)
    assert sum(map(sum, lengths)) / positions > 0.9


@given(SEQUENCES)
def test_ragged_returns_its_sequences(sequences):
    ragged = Ragged.from_sequences(sequences)
    assert [ragged[index].tolist() for index in range(len(ragged))] == sequences
    assert ragged.lengths.tolist() == [len(sequence) for sequence in sequences]


@given(SEQUENCES, st.data())
def test_collate_holds_exactly_the_pairs(sequences, data):
    targets = sequences[::-1]
    pairs = EncodedPairs.from_sequences(sequences, targets)
    batches = TokenBatches(pairs, batch_tokens=100, seed=0)
    indices = data.draw(st.lists(st.integers(0, len(sequences) - 1), min_size=1, max_size=9))
    batch = batches.collate(0, indices)
    assert batch.indices == tuple(indices)
    for side, rows in (
        (batch.source, [[*sequences[index], EOS] for index in indices]),
        (batch.target, [[BOS, *targets[index], EOS] for index in indices]),
    ):
        width = max(map(len, rows))
        assert side.items.dtype == side.lengths.dtype == torch.int64
        assert side.items.tolist() == [row + [PAD] * (width - len(row)) for row in rows]
        assert side.lengths.tolist() == [len(row) for row in rows]
    assert count_target_tokens(batch) == sum(len(targets[index]) + 1 for index in indices)


def test_ids_around_pairs_count_toward_their_lengths():
    ends = Ends((7,), (8, 9)), Ends((5, 6))
    pairs = EncodedPairs.from_sequences([[10], [11, 12]], [[13, 14], []], *ends)
    batch = TokenBatches(pairs, batch_tokens=10, seed=0).collate(0, (0, 1))
    assert batch.source.items.tolist() == [[7, 10, 8, 9, 0], [7, 11, 12, 8, 9]]
    assert batch.target.items.tolist() == [[5, 6, 13, 14], [5, 6, 0, 0]]
    sides = batch.source.lengths.tolist(), batch.target.lengths.tolist()
    assert pairs.lengths == [*zip(*sides, strict=True)]


def test_collate_of_no_rows_has_widths_of_one_and_two():
    batch = TokenBatches(some_pairs(3), batch_tokens=100, seed=0).collate(0, ())
    assert (batch.source.items.shape, batch.target.items.shape) == ((0, 1), (0, 2))
    assert (count_target_tokens(batch), batch.indices) == (0, ())


def test_batches_keep_the_budget_in_their_tensors():
    batches = TokenBatches(some_pairs(200), batch_tokens=150, seed=9)
    plan = batches.plan(4)
    collated = [batches.collate(4, indices) for indices in plan]
    for batch in collated:
        assert max(batch.source.items.numel(), batch.target.items.numel()) <= 150
    assert sorted(index for batch in collated for index in batch.indices) == list(range(200))


def test_any_part_of_a_planned_batch_can_be_collated():
    """Several processes share a batch: each takes every n-th row."""
    batches = TokenBatches(some_pairs(40), batch_tokens=300, seed=2)
    indices = batches.plan(1)[0]
    full_batch = batches.collate(1, indices)
    parts = [batches.collate(1, indices[rank::3]) for rank in range(3)]
    assert sum(count_target_tokens(part) for part in parts) == count_target_tokens(full_batch)
    row = full_batch.target.items[4, : full_batch.target.lengths[4]]
    assert torch.equal(parts[1].target.items[1, : parts[1].target.lengths[1]], row)


def test_batches_take_examples_that_depend_on_the_epoch():
    epochs = []

    def make(epoch: int) -> EncodedPairs:
        epochs.append(epoch)
        return EncodedPairs.from_sequences([[10 + epoch, 20]] * 3, [[30 + epoch]] * 3)

    batches = TokenBatches(make, batch_tokens=50, seed=1)
    for epoch in (5, 5, 6):
        (indices,) = batches.plan(epoch)
        assert batches.collate(epoch, indices).source.items[0].tolist() == [10 + epoch, 20, EOS]
    assert epochs == [5, 6]


def test_batch_moves_to_a_device(device):
    batch = TokenBatches(some_pairs(5), batch_tokens=500, seed=0).collate(0, (3, 1))
    moved = batch.to(device)
    for tensor in (*moved.source, *moved.target):
        assert tensor.device.type == device.type
    assert torch.equal(moved.target.items.cpu(), batch.target.items)
    assert moved.indices == (3, 1)


def test_pad_appends_zeros():
    items, lengths = pad([[7, 8, 9], [], [5]])
    assert items.tolist() == [[7, 8, 9], [0, 0, 0], [5, 0, 0]]
    assert lengths.tolist() == [3, 0, 1]
    assert pad([]).items.shape == (0, 0)


def test_arrays_are_padded_on_the_cpu_whatever_the_default_device_is():
    with torch.device("meta"):
        items, lengths = pad_arrays([np.ones((2, 1)), np.full((1, 1), 3.0)])
    assert (items.dtype, lengths.tolist()) == (torch.float32, [2, 1])
    assert items.tolist() == [[[1], [1]], [[3], [0]]]
