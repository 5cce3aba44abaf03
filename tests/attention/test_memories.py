"""Fixed-size, sliding-window and quantized memories, beyond the contract of all memories."""

import pytest
import torch
from torch import Tensor

from regard.attention.attend import attend, attention_weights
from regard.attention.masks import FilledSlots, causal, padding, window
from regard.attention.memory import (
    Memory,
    QuantizedMemory,
    QuantizedVectors,
    RingMemory,
    SlidingMemory,
    StaticMemory,
)
from regard.attention.positions import Positions
from regard.attention.scores import Additive, General
from tests.helpers import close

CPU = torch.device("cpu")
SIZES = {"key_dim": 7, "value_dim": 5}


def make_pairs(time: int = 1, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Draw queries, keys and values (3, 2, time, ...)."""
    return tuple(torch.randn(3, 2, time, dim, dtype=dtype) for dim in (7, 7, 5))


def make_static(capacity: int = 11, **settings) -> StaticMemory:
    return StaticMemory.empty((3, 2), capacity=capacity, **SIZES, **settings)


def make_ring(size: int = 4, **settings) -> RingMemory:
    return RingMemory.empty((3, 2), window=size, **SIZES, **settings)


# Static memory.


@torch.no_grad()
def test_static_memory_is_written_in_place_at_a_fixed_size():
    memory = make_static()
    _, keys, values = make_pairs(2)
    longer = memory.extend(keys, values)
    assert longer.key_slots is memory.key_slots
    assert (longer.size, int(longer.length), int(memory.length)) == (11, 2, 0)
    assert torch.equal(longer.keys[..., :2, :], keys)
    assert not longer.keys[..., 2:, :].any()


@torch.no_grad()
def test_weights_of_empty_slots_are_zero():
    query, keys, values = make_pairs(3)
    weights = attention_weights(query, make_static().extend(keys, values), mask=causal())
    close(weights[..., :3], attention_weights(query, (keys, values), mask=causal()))
    assert not weights[..., 3:].any()


@torch.no_grad()
def test_static_memory_starts_with_the_pairs_of_another():
    query, keys, values = make_pairs(4)
    score = General(7, 7)
    memory = Memory(keys, values).map_keys_with(score)
    static = StaticMemory.of(memory, capacity=5)
    close(attend(query, static, score=score), attend(query, memory, score=score))
    static.extend(torch.zeros(3, 2, 1, 7), torch.zeros(3, 2, 1, 5))
    close(memory.values, values)


@torch.no_grad()
def test_prompts_of_unequal_lengths_are_padded_on_the_left():
    pads = torch.tensor([2, 0, 1])
    query, keys, values = make_pairs(3)
    last_query, last_keys, last_values = make_pairs()
    memory = StaticMemory.of(Memory(keys, values), capacity=7, mask=~padding(pads))
    out = attend(last_query, memory.extend(last_keys, last_values), mask=causal())
    for row, pad in enumerate(pads.tolist()):
        own = [
            torch.cat((x[row, :, pad:], y[row]), -2)
            for x, y in ((keys, last_keys), (values, last_values))
        ]
        close(out[row], attend(last_query[row], tuple(own)))
    rows = torch.tensor([2, 0])
    close(attend(query[rows], memory.select(rows)), attend(query, memory)[rows])


@torch.no_grad()
def test_within_reads_the_first_slots_and_writes_into_all():
    query, keys, values = make_pairs(3)
    memory = make_static().within(3).extend(keys, values)
    assert memory.size == 3
    close(attend(query, memory), attend(query, memory.within(None)))
    longer = memory.within(5).extend(keys[..., :2, :], values[..., :2, :])
    assert longer.key_slots is memory.key_slots
    close(attend(query, longer), attend(query, longer.within(None)))
    for reach in (0, 12):
        with pytest.raises(
            ValueError, match=f"reach must be from 1 to the capacity 11, got {reach}"
        ):
            memory.within(reach)
    with pytest.raises(ValueError, match="reach must be at least 3, got 2"):
        memory.within(2)


@torch.no_grad()
def test_full_memory_is_refused():
    _, keys, values = make_pairs(3)
    memory = make_static(4).extend(keys, values)
    with pytest.raises(
        ValueError, match="pairs must fit into the capacity 4, got 3 new pairs after 3"
    ):
        memory.extend(keys, values)
    with pytest.raises(ValueError, match="capacity must be at least 3, got 2"):
        StaticMemory.of(Memory(keys, values), capacity=2)


def test_gradients_are_refused_by_memories_written_in_place():
    _, keys, values = make_pairs()
    for memory in (make_static(), make_ring()):
        with pytest.raises(ValueError, match="supports no gradients"):
            memory.extend(keys.requires_grad_(), values)
        mapped = memory.map_keys_with(Additive(7, 7, 5))
        with pytest.raises(ValueError, match="supports no gradients"):
            mapped.extend(torch.zeros(3, 2, 1, 5), values)


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_below_one_are_refused(size):
    for name, make in {
        "capacity": lambda: make_static(size),
        "window": lambda: make_ring(size),
        "most": lambda: make_ring(most=size),
    }.items():
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got {size}"):
            make()
    memory = Memory(torch.randn(3, 1, 7), torch.randn(3, 1, 7))
    with pytest.raises(ValueError, match=f"capacity must be at least 1, got {size}"):
        StaticMemory.of(memory, capacity=size)
    with pytest.raises(ValueError, match=f"window must be at least 1, got {size}"):
        SlidingMemory.of(memory, window=size)


def test_masks_that_do_not_cover_new_keys_are_refused():
    memory = Memory(torch.randn(3, 2, 7), torch.randn(3, 2, 7), padding([1, 2, 1]))
    for make in (
        lambda: StaticMemory.of(memory, capacity=5),
        lambda: SlidingMemory.of(memory, window=5),
    ):
        with pytest.raises(ValueError, match="a memory must have no mask to be extended"):
            make()
    with pytest.raises(ValueError, match="a memory must have no mask to be extended"):
        QuantizedMemory.of(memory).extend(torch.randn(3, 1, 7), torch.randn(3, 1, 7))


# The mask of filled slots.


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize("start", [None, 2, -1, 4])
def test_filled_slots_is_a_range_and_a_rule(size, start):
    positions = Positions(3, 7, CPU, None if start is None else torch.tensor(start))
    mask = FilledSlots(size)
    allowed = mask.materialize(positions).expand(3, 7)
    first, last = mask.interval(positions)
    key = torch.arange(7)
    assert torch.equal((key >= first) & (key < last), allowed)
    rule, zero = mask.rule(positions), torch.zeros((), dtype=torch.int64)
    assert torch.equal(
        torch.stack([torch.stack([rule(zero, zero, q, k) for k in key]) for q in key[:3]]), allowed
    )
    assert torch.equal(mask.materialize(positions.tile(1, 3)).expand(2, 7), allowed[1:])


def test_filled_slots_masks_empty_slots():
    positions = Positions(1, 4, CPU, torch.tensor(2), torch.tensor([0, 1, 2, -1]))
    assert FilledSlots().materialize(positions).tolist() == [[True, True, True, False]]
    assert FilledSlots(2).materialize(positions).tolist() == [[False, True, True, False]]


# Ring and sliding memories.


@torch.no_grad()
def test_ring_overwrites_the_oldest():
    memory = make_ring(3)
    for number in range(5):
        memory = memory.extend(
            torch.full((3, 2, 1, 7), float(number)), torch.full((3, 2, 1, 5), float(number))
        )
    assert memory.keys[0, 0, :, 0].tolist() == [3, 4, 2]
    assert memory.positions(1).key.tolist() == [3, 4, 2]
    assert make_ring(3).positions(1).key.tolist() == [-3, -2, -1]


@torch.no_grad()
def test_ring_refuses_more_than_its_limit():
    query, keys, values = make_pairs(3)
    memory = make_ring(4, most=2)
    assert memory.size == 5
    with pytest.raises(ValueError, match="a RingMemory takes at most 2 new pairs, got 3"):
        memory.extend(keys, values)
    memory = memory.extend(keys[..., :2, :], values[..., :2, :])
    with pytest.raises(ValueError, match="a RingMemory is read by at most 2 queries, got 3"):
        attend(query, memory)


@torch.no_grad()
def test_ring_with_overwritten_pairs_cannot_be_cropped():
    memory = make_ring(3, most=2)
    for _ in range(5):
        memory = memory.extend(*make_pairs()[1:])
    with pytest.raises(ValueError, match="size must be 5: pairs were overwritten, got 4"):
        memory.crop(4)
    assert int(memory.crop(5).length) == 5


@torch.no_grad()
def test_sliding_memory_keeps_the_pairs_that_queries_need_and_refuses_other_reads():
    query, keys, values = make_pairs(9)
    memory = SlidingMemory.of(Memory(keys[..., :0, :], values[..., :0, :]), window=3)
    for count in (4, 1, 2):
        memory = memory.extend(keys[..., :count, :], values[..., :count, :])
        assert memory.size == min(2 + count, int(memory.length))
    with pytest.raises(
        ValueError,
        match="queries need the pairs from 2 on, but those before 3",
    ):
        attend(query[..., :3, :], memory)
    with pytest.raises(
        ValueError,
        match="queries need the pairs from 2 on, but those before 3",
    ):
        attend(query[..., :1, :], memory.crop(5))


@torch.no_grad()
def test_sliding_memory_discards_pairs_outside_the_window():
    memory = SlidingMemory.of(Memory(*(torch.randn(3, 0, 7) for _ in range(2))), window=5)
    for _ in range(40):
        memory = memory.extend(torch.randn(3, 1, 7), torch.randn(3, 1, 7))
        assert memory.pairs.size <= 11
    assert memory.mask is None


def test_sliding_memory_has_gradients():
    query, keys, values = (x.double().requires_grad_() for x in make_pairs(5))
    memory = SlidingMemory.of(Memory(keys[..., :0, :], values[..., :0, :]), window=2)
    outs = []
    for q, k, v in zip(*(x.split(1, -2) for x in (query, keys, values)), strict=True):
        memory = memory.extend(k, v)
        outs.append(attend(q, memory))
    actual = torch.autograd.grad(torch.cat(outs, -2).square().sum(), (query, keys, values))
    expected = attend(query, (keys, values), mask=window(2)).square().sum()
    for gradient, other in zip(
        actual, torch.autograd.grad(expected, (query, keys, values)), strict=True
    ):
        close(gradient, other)


# Quantization.


def test_quantization_by_hand():
    small = QuantizedVectors.quantize(
        torch.tensor([[127.0, -63.6, 0.4, 0.0], [0.0, 0.0, 0.0, 0.0], [-2.54, 1.27, 0.0, 0.01]])
    )
    assert small.numbers[:2].tolist() == [[127, -64, 0, 0], [0, 0, 0, 0]]
    assert small.scale[:2].tolist() == [[1.0], [0.0]]
    assert small.numbers[2, 0] == -127
    assert small.numbers.dtype == torch.int8


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e30])
def test_quantization_error_is_bounded_at_any_magnitude(size):
    vectors = torch.randn(1000, 17) * size
    error = (QuantizedVectors.quantize(vectors).dequantize(torch.float32) - vectors).abs().amax(-1)
    assert (error <= vectors.abs().amax(-1) / 253).all()


def test_quantization_is_idempotent():
    small = QuantizedVectors.quantize(torch.randn(500, 13))
    requantized = QuantizedVectors.quantize(small.dequantize(torch.float32))
    assert torch.equal(requantized.numbers, small.numbers)
    assert torch.equal(requantized.scale, small.scale)


def test_quantized_memory_is_four_times_smaller_and_reads_nearly_the_same():
    query, keys, values = (torch.randn(2, 8, time, 64) for time in (3, 500, 500))
    memory = Memory(keys, values)
    small = QuantizedMemory.of(memory)
    assert small.num_bytes * 3.85 < keys.nbytes + values.nbytes
    error = attend(query, small) - attend(query, memory)
    assert error.abs().max() < 0.02 * attend(query, memory).abs().max()


def test_quantized_memory_keeps_the_mask_and_selects_its_rows():
    query, keys, values = make_pairs(4)
    memory = Memory(keys, values, padding([1, 4, 2]))
    small, rows = QuantizedMemory.of(memory), torch.tensor([2, 2, 0])
    wide = Memory(small.keys, small.values, memory.mask)
    close(attend(query, small), attend(query, wide))
    close(attend(query, small.select(rows)), attend(query, wide.select(rows)))
