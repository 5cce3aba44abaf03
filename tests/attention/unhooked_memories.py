"""Loops over memories that torch compiles; run by test_memories.py, in a process without shape checks."""

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from regard.attention.attend import attend
from regard.attention.memories import Held, RingMemory, StaticMemory
from regard.attention.memory import Memory, Store
from tests.helpers import close

SIZES = {"key_dim": 7, "value_dim": 5}


def new(time: int = 1, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of (3, 2, time, ...)."""
    return tuple(torch.randn(3, 2, time, dim, dtype=dtype) for dim in (7, 7, 5))


def static(capacity: int = 11, **settings) -> StaticMemory:
    return StaticMemory.empty((3, 2), capacity=capacity, **SIZES, **settings)


def ring(size: int = 4, **settings) -> RingMemory:
    return RingMemory.empty((3, 2), window=size, **SIZES, **settings)


@torch.no_grad()
def step(query: Tensor, keys: Tensor, values: Tensor, memory: Store) -> tuple[Tensor, Store]:
    memory = memory.extend(keys, values)
    return attend(query, memory), memory


@pytest.mark.parametrize("make", [static, ring, lambda: static().within(9)], ids=["static", "ring", "within"])
def test_a_loop_compiles_once(make):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, fullgraph=True, backend=counter)
    memory, expected = make(), make()
    for _ in range(9):
        item = new()
        out, memory = compiled(*item, memory)
        wanted, expected = step(*item, expected)
        close(out, wanted)
    assert counter.frame_count == 1
    assert isinstance(memory, type(expected))
    assert int(memory.length) == 9


def test_a_step_past_the_last_slot_is_an_error_in_a_compiled_loop_too():
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    memory = static(1)
    _, memory = compiled(*new(), memory)
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(*new(), memory)


class Step(nn.Module):
    """A step of a loop whose memory is in tensors."""

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, slots: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        memory = StaticMemory(*slots, mask=Held()).extend(keys, values)
        slots[2].copy_(memory.length)
        return attend(query, memory)


def test_a_loop_over_longer_reaches_compiles_once_for_each():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, fullgraph=True, backend=counter, dynamic=False)
    memory, expected = static(8), static(8)
    for number in range(8):
        item = new()
        reach = 2 if number < 2 else 4 if number < 4 else 8
        out, memory = compiled(*item, memory.within(reach))
        wanted, expected = step(*item, expected)
        close(out, wanted)
    assert counter.frame_count == 3


@torch.no_grad()
def test_a_step_exports():
    memory = static()
    slots = memory.key_slots, memory.value_slots, memory.length
    exported = torch.export.export(Step(), (*new(), tuple(x.clone() for x in slots))).module()
    pairs = Memory(torch.zeros(3, 2, 0, 7), torch.zeros(3, 2, 0, 5))
    for _ in range(3):
        query, keys, values = new()
        pairs = pairs.extend(keys, values)
        close(exported(query, keys, values, slots), attend(query, pairs))
