"""Growing memories are immutable, although longer ones share their buffers."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from regard.attention.memory import Memory
from regard.attention.memory import growing as module
from regard.attention.scores import Dot


@pytest.fixture
def preallocate_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preallocate buffers for memories of any length."""
    monkeypatch.setattr(module, "_MIN_PREALLOCATED", 0)


def make_grown(*, times: int = 3) -> Memory:
    """Create a memory of 2 + `times` pairs by extending it by one pair at a time."""
    memory = Memory(torch.randn(3, 2, 5), torch.randn(3, 2, 7))
    for _ in range(times):
        memory = memory.extend(*make_pair())
    return memory


def make_pair(new: int = 1) -> tuple[Tensor, Tensor]:
    return torch.randn(3, new, 5), torch.randn(3, new, 7)


def shares_buffer(longer: Memory, shorter: Memory) -> bool:
    return (
        longer.keys.data_ptr() == shorter.keys.data_ptr()
        and longer.values.data_ptr() == shorter.values.data_ptr()
    )


@pytest.mark.usefixtures("preallocate_always")
@torch.no_grad()
def test_extend_writes_without_copying_and_the_shorter_keeps_its_pairs():
    memory = make_grown()
    before = memory.keys.clone(), memory.values.clone()
    longer = memory.extend(*(new := make_pair(2)))
    assert shares_buffer(longer, memory)
    assert longer.size == 7
    assert torch.equal(longer.keys, torch.cat((before[0], new[0]), -2))
    assert torch.equal(longer.values, torch.cat((before[1], new[1]), -2))
    assert torch.equal(memory.keys, before[0])
    assert torch.equal(memory.values, before[1])


@pytest.mark.usefixtures("preallocate_always")
@torch.no_grad()
def test_extend_copies_each_pair_a_few_times_in_all():
    memory, moves = make_grown(times=1), 0
    for _ in range(200):
        longer = memory.extend(*make_pair())
        moves += 0 if shares_buffer(longer, memory) else memory.size
        memory = longer
    assert moves < 4 * memory.size


@pytest.mark.usefixtures("preallocate_always")
@torch.no_grad()
def test_only_the_first_extension_owns_the_buffer():
    memory = make_grown()
    first, second = memory.extend(*make_pair()), memory.extend(*(new := make_pair()))
    assert shares_buffer(first, memory)
    assert not shares_buffer(second, memory)
    assert torch.equal(second.keys[:, -1:], new[0])
    original = first.keys.clone()
    second.extend(*make_pair()).extend(*make_pair())
    assert torch.equal(first.keys, original)


@pytest.mark.usefixtures("preallocate_always")
@torch.no_grad()
@pytest.mark.parametrize("derive", ["crop", "select", "map"])
def test_derived_memories_do_not_write_into_the_buffer(derive):
    memory = make_grown()
    longer = memory.extend(*make_pair())
    original = longer.keys.clone(), longer.values.clone()
    other = {
        "crop": lambda: longer.crop(4),
        "select": lambda: longer.select(torch.tensor([0, 1, 2])),
        "map": lambda: longer.map_keys_with(Dot()),
    }[derive]()
    for _ in range(3):
        other = other.extend(*make_pair())
    assert torch.equal(longer.keys, original[0])
    assert torch.equal(longer.values, original[1])


@pytest.mark.usefixtures("preallocate_always")
@torch.no_grad()
def test_threads_that_extend_one_prompt_do_not_interfere():
    memory, pairs = make_grown(), [make_pair() for _ in range(64)]

    @torch.no_grad()
    def extend(
        new: tuple[Tensor, Tensor],
    ) -> Memory:  # each thread has its own switch for gradients
        return memory.extend(*new)

    with ThreadPoolExecutor(8) as pool:
        longer = list(pool.map(extend, pairs))
    assert sum(shares_buffer(extended, memory) for extended in longer) == 1
    for extended, new in zip(longer, pairs, strict=True):
        assert torch.equal(extended.keys, torch.cat((memory.keys, new[0]), -2))


@pytest.mark.usefixtures("preallocate_always")
@torch.no_grad()
def test_deep_copy_grows_in_a_buffer_of_its_own():
    memory = make_grown()
    copied = copy.deepcopy(memory)
    first, second = memory.extend(*make_pair()), copied.extend(*(new := make_pair()))
    assert not torch.equal(first.keys, second.keys)
    assert torch.equal(second.keys[:, -1:], new[0])


@pytest.mark.usefixtures("preallocate_always")
def test_memory_grown_in_inference_mode_grows_outside():
    with torch.inference_mode():
        memory = make_grown()
    with torch.no_grad():
        longer = memory.extend(*(new := make_pair()))
    assert torch.equal(longer.keys, torch.cat((memory.keys, new[0]), -2))


@pytest.mark.usefixtures("preallocate_always")
def test_gradients_flow_through_all_extensions():
    pairs = [tuple(x.requires_grad_() for x in make_pair()) for _ in range(3)]
    with torch.no_grad():
        memory = make_grown()
    for new in pairs:
        memory = memory.extend(*new)
    (memory.keys[:, -3:].sum() + 2 * memory.values[:, -3:].sum()).backward()
    assert all((keys.grad == 1).all() and (values.grad == 2).all() for keys, values in pairs)


@pytest.mark.usefixtures("preallocate_always")
@torch.no_grad()
def test_extend_maps_over_rows_with_vmap():
    keys, values, new_keys, new_values = torch.randn(3, 4, 5), torch.randn(3, 4, 7), *make_pair()

    def longer(*tensors: Tensor) -> Tensor:
        memory = Memory(*tensors[:2])
        for _ in range(3):
            memory = memory.extend(*tensors[2:])
        return memory.keys

    actual = torch.func.vmap(longer)(keys, values, new_keys, new_values)
    assert torch.equal(actual, torch.cat((keys, new_keys, new_keys, new_keys), -2))


@torch.no_grad()
def test_short_memories_are_copied():
    memory = make_grown()
    assert not shares_buffer(memory.extend(*make_pair()), memory)


@pytest.mark.usefixtures("preallocate_always")
@torch.no_grad()
def test_reordered_memories_store_only_their_pairs():
    memory = make_grown()
    for _ in range(3):
        memory = memory.select(torch.tensor([2, 1, 0])).extend(*make_pair())
    assert memory.keys.untyped_storage().nbytes() == memory.keys.nbytes
