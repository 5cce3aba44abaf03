"""Memories of a fixed size, of the last pairs and of small numbers: what is their own beside the contract of all."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard.attention.attend import attend, weigh
from regard.attention.masks import causal, padding
from regard.attention.memories import Held, RingMemory, StaticMemory
from regard.attention.memory import Memory
from regard.attention.patterns import window
from regard.attention.places import Places
from regard.attention.quantized import QuantizedMemory, Small
from regard.attention.scores import Additive, General
from regard.attention.sliding import SlidingMemory
from tests.helpers import close

CPU = torch.device("cpu")
SIZES = {"key_dim": 7, "value_dim": 5}


def new(time: int = 1, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of (3, 2, time, ...)."""
    return tuple(torch.randn(3, 2, time, dim, dtype=dtype) for dim in (7, 7, 5))


def static(capacity: int = 11, **settings) -> StaticMemory:
    return StaticMemory.empty((3, 2), capacity=capacity, **SIZES, **settings)


def ring(size: int = 4, **settings) -> RingMemory:
    return RingMemory.empty((3, 2), window=size, **SIZES, **settings)


def test_compiled_loops_are_right() -> None:
    # Without shape checks: these are Python that the compiler cannot see through.
    options = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/attention/unhooked_memories.py"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "6 passed" in done.stdout


# In one slot after another.


@torch.no_grad()
def test_static_memory_is_written_in_place_and_its_size_stays():
    memory = static()
    _, keys, values = new(2)
    longer = memory.extend(keys, values)
    assert longer.key_slots is memory.key_slots
    assert (longer.size, int(longer.length), int(memory.length)) == (11, 2, 0)
    assert torch.equal(longer.keys[..., :2, :], keys)
    assert not longer.keys[..., 2:, :].any()


@torch.no_grad()
def test_weights_of_slots_that_are_not_filled_are_zero():
    query, keys, values = new(3)
    weights = weigh(query, static().extend(keys, values), mask=causal())
    close(weights[..., :3], weigh(query, (keys, values), mask=causal()))
    assert not weights[..., 3:].any()


@torch.no_grad()
def test_static_memory_starts_with_the_pairs_of_another():
    query, keys, values = new(4)
    score = General(7, 7)
    memory = Memory(keys, values).map_keys_with(score)
    kept = StaticMemory.of(memory, capacity=5)
    close(attend(query, kept, score=score), attend(query, memory, score=score))
    kept.extend(torch.zeros(3, 2, 1, 7), torch.zeros(3, 2, 1, 5))
    close(memory.values, values)


@torch.no_grad()
def test_prompts_of_unequal_lengths_are_padded_in_front():
    pads = torch.tensor([2, 0, 1])
    query, keys, values = new(3)
    last_query, last_keys, last_values = new()
    memory = StaticMemory.of(Memory(keys, values), capacity=7, mask=~padding(pads))
    out = attend(last_query, memory.extend(last_keys, last_values), mask=causal())
    for row, pad in enumerate(pads.tolist()):
        own = [torch.cat((x[row, :, pad:], y[row]), -2) for x, y in ((keys, last_keys), (values, last_values))]
        close(out[row], attend(last_query[row], tuple(own)))
    rows = torch.tensor([2, 0])
    close(attend(query[rows], memory.select(rows)), attend(query, memory)[rows])


@torch.no_grad()
def test_within_reads_the_first_slots_and_writes_into_all():
    query, keys, values = new(3)
    memory = static().within(3).extend(keys, values)
    assert memory.size == 3
    close(attend(query, memory), attend(query, memory.within(None)))
    longer = memory.within(5).extend(keys[..., :2, :], values[..., :2, :])
    assert longer.key_slots is memory.key_slots
    close(attend(query, longer), attend(query, longer.within(None)))
    for reach in (0, 12):
        with pytest.raises(ValueError, match=f"reach must be between 1 and the capacity 11, but is {reach}"):
            memory.within(reach)
    with pytest.raises(ValueError, match="reach must be at least 3, the pairs that are here, but is 2"):
        memory.within(2)


@torch.no_grad()
def test_full_memory_is_named():
    _, keys, values = new(3)
    memory = static(4).extend(keys, values)
    with pytest.raises(ValueError, match="capacity 4 cannot take 3 more pairs than its 3"):
        memory.extend(keys, values)
    with pytest.raises(ValueError, match="capacity 2 cannot take 3 more"):
        StaticMemory.of(Memory(keys, values), capacity=2)


def test_gradients_are_refused_by_memories_written_in_place():
    _, keys, values = new()
    for memory in (static(), ring()):
        with pytest.raises(ValueError, match="keeps no gradients"):
            memory.extend(keys.requires_grad_(), values)
        mapped = memory.map_keys_with(Additive(7, 7, 5))
        with pytest.raises(ValueError, match="keeps no gradients"):
            mapped.extend(torch.zeros(3, 2, 1, 5), values)


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_below_one_are_named(size):
    for name, make in {
        "capacity": lambda: static(size),
        "window": lambda: ring(size),
        "most": lambda: ring(most=size),
        "key_dim": lambda: StaticMemory.empty((3,), capacity=1, key_dim=size),
        "value_dim": lambda: RingMemory.empty((3,), window=1, key_dim=1, value_dim=size),
    }.items():
        with pytest.raises(ValueError, match=f"{name} must be at least 1, but is {size}"):
            make()
    memory = Memory(torch.randn(3, 1, 7), torch.randn(3, 1, 7))
    with pytest.raises(ValueError, match=f"capacity must be at least 1, but is {size}"):
        StaticMemory.of(memory, capacity=size)
    with pytest.raises(ValueError, match=f"window must be at least 1, but is {size}"):
        SlidingMemory.of(memory, window=size)


def test_masks_that_do_not_know_of_new_keys_are_refused():
    memory = Memory(torch.randn(3, 2, 7), torch.randn(3, 2, 7), padding([1, 2, 1]))
    for make in (lambda: StaticMemory.of(memory, capacity=5), lambda: SlidingMemory.of(memory, window=5)):
        with pytest.raises(ValueError, match="a memory with a mask cannot grow"):
            make()
    with pytest.raises(ValueError, match="a memory with a mask cannot grow"):
        QuantizedMemory.of(memory).extend(torch.randn(3, 1, 7), torch.randn(3, 1, 7))


# The mask of what is held.


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize("start", [None, 2, -1, 4])
def test_held_is_a_range_and_a_rule(size, start):
    places = Places(3, 7, CPU, None if start is None else torch.tensor(start))
    mask = Held(size)
    seen = mask.see(places).expand(3, 7)
    first, last = mask.interval(places)
    key = torch.arange(7)
    assert torch.equal((key >= first) & (key < last), seen)
    rule, zero = mask.rule(places), torch.zeros((), dtype=torch.int64)
    assert torch.equal(torch.stack([torch.stack([rule(zero, zero, q, k) for k in key]) for q in key[:3]]), seen)
    assert torch.equal(mask.see(places.tile(1, 3)).expand(2, 7), seen[1:])


def test_held_hides_what_is_not_filled():
    places = Places(1, 4, CPU, torch.tensor(2), torch.tensor([0, 1, 2, -1]))
    assert Held().see(places).tolist() == [[True, True, True, False]]
    assert Held(2).see(places).tolist() == [[False, True, True, False]]


# The last pairs.


@torch.no_grad()
def test_ring_overwrites_the_oldest():
    memory = ring(3)
    for number in range(5):
        memory = memory.extend(torch.full((3, 2, 1, 7), float(number)), torch.full((3, 2, 1, 5), float(number)))
    assert memory.keys[0, 0, :, 0].tolist() == [3, 4, 2]
    assert memory.places(1).key.tolist() == [3, 4, 2]
    assert ring(3).places(1).key.tolist() == [-3, -2, -1]


@torch.no_grad()
def test_ring_refuses_more_than_it_was_made_for():
    query, keys, values = new(3)
    memory = ring(4, most=2)
    assert memory.size == 5
    with pytest.raises(ValueError, match="at most 2 pairs can be taken in at once, but there are 3"):
        memory.extend(keys, values)
    memory = memory.extend(keys[..., :2, :], values[..., :2, :])
    with pytest.raises(ValueError, match="at most 2 queries can read this ring at once, but there are 3"):
        attend(query, memory)


@torch.no_grad()
def test_ring_that_went_round_does_not_go_back():
    memory = ring(3, most=2)
    for _ in range(5):
        memory = memory.extend(*new()[1:])
    with pytest.raises(ValueError, match="a ring of 4 slots that took in 5 pairs cannot go back to 4"):
        memory.crop(4)
    assert int(memory.crop(5).length) == 5


@torch.no_grad()
def test_sliding_memory_holds_what_queries_need_and_refuses_the_rest():
    query, keys, values = new(9)
    memory = SlidingMemory.of(Memory(keys[..., :0, :], values[..., :0, :]), window=3)
    for count in (4, 1, 2):
        memory = memory.extend(keys[..., :count, :], values[..., :count, :])
        assert memory.size == min(2 + count, int(memory.length))
    with pytest.raises(ValueError, match="3 queries with a window of 3 need the pairs from 2 on, but those before 3"):
        attend(query[..., :3, :], memory)
    with pytest.raises(ValueError, match="1 queries with a window of 3 need the pairs from 2 on, but those before 3"):
        attend(query[..., :1, :], memory.crop(5))


@torch.no_grad()
def test_sliding_memory_lets_go_of_what_no_query_will_see():
    memory = SlidingMemory.of(Memory(*(torch.randn(3, 0, 7) for _ in range(2))), window=5)
    for _ in range(40):
        memory = memory.extend(torch.randn(3, 1, 7), torch.randn(3, 1, 7))
        assert memory.pairs.size <= 11
    assert memory.mask is None


def test_sliding_memory_has_gradients():
    query, keys, values = (x.double().requires_grad_() for x in new(5))
    memory = SlidingMemory.of(Memory(keys[..., :0, :], values[..., :0, :]), window=2)
    outs = []
    for q, k, v in zip(*(x.split(1, -2) for x in (query, keys, values)), strict=True):
        memory = memory.extend(k, v)
        outs.append(attend(q, memory))
    got = torch.autograd.grad(torch.cat(outs, -2).square().sum(), (query, keys, values))
    expected = attend(query, (keys, values), mask=window(2)).square().sum()
    for one, other in zip(got, torch.autograd.grad(expected, (query, keys, values)), strict=True):
        close(one, other)


# Small numbers.


def test_small_numbers_by_hand():
    small = Small.of(torch.tensor([[127.0, -63.6, 0.4, 0.0], [0.0, 0.0, 0.0, 0.0], [-2.54, 1.27, 0.0, 0.01]]))
    assert small.numbers[:2].tolist() == [[127, -64, 0, 0], [0, 0, 0, 0]]
    assert small.scale[:2].tolist() == [[1.0], [0.0]]
    assert small.numbers[2, 0] == -127
    assert small.numbers.dtype == torch.int8


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e30])
def test_small_numbers_are_near_theirs_at_any_size(size):
    vectors = torch.randn(1000, 17) * size
    error = (Small.of(vectors).wide(torch.float32) - vectors).abs().amax(-1)
    assert (error <= vectors.abs().amax(-1) / 253).all()


def test_small_numbers_are_their_own_nearest():
    small = Small.of(torch.randn(500, 13))
    again = Small.of(small.wide(torch.float32))
    assert torch.equal(again.numbers, small.numbers)
    assert torch.equal(again.scale, small.scale)


def test_quantized_memory_is_four_times_smaller_and_reads_nearly_the_same():
    query, keys, values = (torch.randn(2, 8, time, 64) for time in (3, 500, 500))
    memory = Memory(keys, values)
    small = QuantizedMemory.of(memory)
    assert small.num_bytes * 3.85 < keys.nbytes + values.nbytes
    error = attend(query, small) - attend(query, memory)
    assert error.abs().max() < 0.02 * attend(query, memory).abs().max()


def test_quantized_memory_keeps_the_mask_and_its_rows():
    query, keys, values = new(4)
    memory = Memory(keys, values, padding([1, 4, 2]))
    small, rows = QuantizedMemory.of(memory), torch.tensor([2, 2, 0])
    wide = Memory(small.keys, small.values, memory.mask)
    close(attend(query, small), attend(query, wide))
    close(attend(query, small.select(rows)), attend(query, wide.select(rows)))
