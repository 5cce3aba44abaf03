"""Compiled decoding loops over memories; run by tests/contracts/test_transforms.py."""

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from regard.attention.attend import attend
from regard.attention.masks import FilledSlots
from regard.attention.memory import KeyValueCache, Memory, RingMemory, StaticMemory
from tests.helpers import close

SIZES = {"key_dim": 7, "value_dim": 5}


def make_pairs(time: int = 1, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Draw queries, keys and values (3, 2, time, ...)."""
    return tuple(torch.randn(3, 2, time, dim, dtype=dtype) for dim in (7, 7, 5))


def make_static(capacity: int = 11, **settings) -> StaticMemory:
    return StaticMemory.empty((3, 2), capacity=capacity, **SIZES, **settings)


def make_ring(size: int = 4, **settings) -> RingMemory:
    return RingMemory.empty((3, 2), window=size, **SIZES, **settings)


@torch.no_grad()
def step(
    query: Tensor, keys: Tensor, values: Tensor, memory: KeyValueCache
) -> tuple[Tensor, KeyValueCache]:
    memory = memory.extend(keys, values)
    return attend(query, memory), memory


@pytest.mark.parametrize(
    "make",
    [make_static, make_ring, lambda: make_static().within(9)],
    ids=["static", "ring", "within"],
)
def test_a_loop_compiles_once(make):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, fullgraph=True, backend=counter)
    memory, expected = make(), make()
    for _ in range(9):
        item = make_pairs()
        out, memory = compiled(*item, memory)
        reference, expected = step(*item, expected)
        close(out, reference)
    assert counter.frame_count == 1
    assert isinstance(memory, type(expected))
    assert int(memory.length) == 9


def test_a_step_past_the_last_slot_fails_in_a_compiled_loop():
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    memory = make_static(1)
    _, memory = compiled(*make_pairs(), memory)
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(*make_pairs(), memory)


class Step(nn.Module):
    """Step of a decoding loop whose memory is a tuple of tensors."""

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, slots: tuple[Tensor, Tensor, Tensor]
    ) -> Tensor:
        memory = StaticMemory(*slots, mask=FilledSlots()).extend(keys, values)
        slots[2].copy_(memory.length)
        return attend(query, memory)


def test_a_loop_compiles_once_per_reach():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, fullgraph=True, backend=counter, dynamic=False)
    memory, expected = make_static(8), make_static(8)
    for number in range(8):
        item = make_pairs()
        reach = 2 if number < 2 else 4 if number < 4 else 8
        out, memory = compiled(*item, memory.within(reach))
        reference, expected = step(*item, expected)
        close(out, reference)
    assert counter.frame_count == 3


@torch.no_grad()
def test_a_step_exports():
    memory = make_static()
    slots = memory.key_slots, memory.value_slots, memory.length
    exported = torch.export.export(
        Step(), (*make_pairs(), tuple(x.clone() for x in slots))
    ).module()
    pairs = Memory(torch.zeros(3, 2, 0, 7), torch.zeros(3, 2, 0, 5))
    for _ in range(3):
        query, keys, values = make_pairs()
        pairs = pairs.extend(keys, values)
        close(exported(query, keys, values, slots), attend(query, pairs))
