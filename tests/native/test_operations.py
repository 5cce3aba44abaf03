"""Contract of every compiled CPU operation: its numbers depend on the numbers of its inputs alone.

Not on other threads that compute and free memory, on defaults of torch, or on how inputs are laid
out in memory.
"""

import ctypes
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from regard.native import delta_rule, jobs, threads
from regard.native.additive.cpu import call as additive
from regard.native.dropout import loops as dropout
from regard.native.gru import cells, read
from regard.native.table import OPERATIONS, is_plain
from regard.native.token_loss import AccumulateJob
from regard.ops.additive import additive_read
from regard.ops.delta_rule import Writes
from regard.ops.gru import GRUDecoderState, GRUWeights, ReadWeights, SourceMemory
from regard.ops.linear import get_bfloat16
from regard.ops.token_loss import token_loss

THREADS, REPEATS = 8, 12
ROWS, STEPS, KEYS, HIDDEN, DIM, VALUE_DIM = 5, 4, 6, 8, 7, 3
GATES = 3 * HIDDEN
BFLOAT16 = torch.bfloat16
Change = Callable[[Tensor], Tensor]


class Case(NamedTuple):
    """Inputs of an operation, all of float32 or as in `dtypes`, and a call of it."""

    sizes: tuple[tuple[int, ...], ...]
    call: Callable[..., tuple[Tensor, ...]]
    is_differentiable: bool = True
    dtypes: Mapping[int, torch.dtype] = MappingProxyType({})


def run(name: str) -> Callable[..., tuple[Tensor, ...]]:
    def call(*inputs: object, **settings: object) -> tuple[Tensor, ...]:
        results = OPERATIONS[name].run(*inputs, **settings)
        return results if isinstance(results, tuple) else (results,)

    return call


def add_norm(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", BFLOAT16):
        (out,) = run("add_dropout_norm")(*inputs, 1e-5, 7, 20000)
        return out, get_bfloat16(out)


def accumulate(total: Tensor, part: Tensor) -> tuple[Tensor]:
    total = total.clone()
    OPERATIONS["accumulate"].run(total, part)
    return (total,)


def encode(projected: Tensor, lengths: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    return run("gru_encode")(projected, lengths, list(weights[:2]), list(weights[2:]))


def decode(projected: Tensor, lengths: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    state, context, keys, values, *weights = inputs
    before, source = GRUDecoderState(state, context), SourceMemory(keys, values, lengths)
    cell = GRUWeights(weights[0], weights[0], *weights[:3])
    return run("gru_decode")(projected, before, source, cell, ReadWeights(*weights[3:]))


def write(query: Tensor, state: Tensor, *writes: Tensor) -> tuple[Tensor, ...]:
    keys, values, decay, strength = writes
    return run("write")(query, Writes(keys, values, -decay.abs(), strength), state)


def decode_in_bfloat16(*inputs: Tensor) -> tuple[Tensor, ...]:
    with torch.autocast("cpu", BFLOAT16):
        return decode(*inputs)


READ = (2, 4, 5, DIM), (2, 2, KEYS, DIM), (2, 2, KEYS, VALUE_DIM), (4, DIM), (2, 1, 5, KEYS)
DIAGONALS = (1, 4, 5 + KEYS - 1)
STEP = (2, 2, 1, DIM), *READ[1:3], (1, DIM), (2, 1, 1, KEYS)
BOUNDS = (2, 1, 1)
ENCODER = ((KEYS, ROWS, 2 * GATES), (ROWS,), *[(GATES, HIDDEN)] * 2, *[(GATES,)] * 2)
DECODER = (
    (STEPS, ROWS, GATES), (ROWS,), (ROWS, HIDDEN), (ROWS, VALUE_DIM), (ROWS, KEYS, DIM),
    (ROWS, KEYS, VALUE_DIM), (GATES, HIDDEN), (HIDDEN,), (GATES, VALUE_DIM), (DIM, HIDDEN), (DIM,),
)  # fmt: skip
WRITE = (
    (ROWS, STEPS, DIM), (ROWS, DIM, VALUE_DIM), (ROWS, STEPS, DIM), (ROWS, STEPS, VALUE_DIM),
    (ROWS, STEPS, 1), (ROWS, STEPS, 1),
)  # fmt: skip
INT32 = {1: torch.int32}


def read_tiles(*inputs: Tensor) -> tuple[Tensor, ...]:
    query, keys, values, v, bias, diagonals, last = inputs
    allowed = bias.detach() < 1
    return additive_read(query, keys, values, v, None, last, allowed, bias, diagonals)[:1]


def read_step(query: Tensor, keys: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    values, v, bias, last = inputs
    rules = None, last, None, bias, None
    cached = additive_read(query, keys, values, v, *rules, (2 * keys.detach()).exp())[0]
    return additive_read(query, keys, values, v, *rules)[0], cached


CASES: dict[str, Case] = {
    "linear": Case(((9, 16), (5, 16), (5,)), lambda *t: run("linear")(*t, relu=True)),
    "softmax": Case(((2048, 9),), run("softmax")),
    "dropout": Case(((67, 33),), lambda x: run("dropout")(x, 7, 20000, BFLOAT16)),
    "add_dropout": Case(((67, 33), (67, 33)), lambda *t: run("add_dropout")(*t, 7, 20000)),
    "add_dropout_norm": Case(((67, 33), (67, 33), (33,), (33,)), add_norm, dtypes={1: BFLOAT16}),
    "exponentiate_rows": Case(
        ((37, 50),), lambda x: run("exponentiate_rows")(x.clone()), is_differentiable=False
    ),
    "accumulate": Case(((37, 50), (37, 50)), accumulate, False, {1: BFLOAT16}),
    "gru_encode": Case(ENCODER, encode, dtypes=INT32),
    "gru_decode": Case(DECODER, decode, dtypes=INT32),
    "gru_decode in bfloat16": Case(
        DECODER, decode_in_bfloat16, dtypes={1: torch.int64, 10: BFLOAT16}
    ),
    "write": Case(WRITE, write, is_differentiable=False),
    "additive.cpu": Case((*READ, DIAGONALS, BOUNDS), read_tiles, dtypes={6: torch.int32}),
    "additive.cpu in steps": Case((*STEP, BOUNDS), read_step, dtypes={5: torch.int64}),
}


def test_each_operation_of_a_cpu_is_tested() -> None:
    names = {name.split(" in ")[0] for name in CASES} | {"additive.cpu.backward"}
    assert names == {name for name in OPERATIONS if OPERATIONS[name].requires is None}


def draw(name: str) -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    case, inputs = CASES[name], []
    for index, size in enumerate(case.sizes):
        dtype = case.dtypes.get(index, torch.float32)
        if dtype.is_floating_point:
            inputs.append(torch.randn(size).to(dtype))
        else:
            inputs.append(torch.randint(1, KEYS, size).to(dtype))
    return tuple(inputs)


def compute(name: str, inputs: tuple[Tensor, ...], change: Change = torch.clone) -> list[Tensor]:
    """Return the outputs of an operation, and the gradients of those inputs that have one.

    change: changes the layout of the gradients of the outputs.
    """
    case = CASES[name]
    if not case.is_differentiable:
        return list(case.call(*inputs))
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
    outputs = [out for out in case.call(*leaves) if out.grad_fn is not None]
    needed = [leaf for leaf in leaves if leaf.requires_grad]
    weights = [change(out.detach().cos()) for out in outputs]
    gradients = torch.autograd.grad(outputs, needed, weights, allow_unused=True)
    return [out.detach() for out in outputs] + [x for x in gradients if x is not None]


def are_equal(actual: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.fixture(params=["one thread", "OpenMP", "threads of Python"])
def used_threads(request, monkeypatch):
    """Let jobs of any size use as many threads as torch has."""
    for module in (additive, delta_rule, dropout, cells, read):
        name = "_MIN_WORK_PER_THREAD"
        if hasattr(module, name):
            monkeypatch.setattr(module, name, 1)
    if request.param == "threads of Python":
        monkeypatch.setattr(threads, "load_parallel", lambda: None)
    before = torch.get_num_threads()
    torch.set_num_threads(1 if request.param == "one thread" else 2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_operations_in_eight_threads_return_the_numbers_of_one(name, used_threads) -> None:
    inputs = draw(name)
    expected, start = compute(name, inputs), threading.Barrier(THREADS)

    def repeat(_: int) -> list[bool]:
        start.wait()
        return [are_equal(compute(name, inputs), expected) for _ in range(REPEATS)]

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(map(all, pool.map(repeat, range(THREADS))))


@pytest.mark.parametrize("name", CASES)
def test_defaults_of_torch_change_nothing(name) -> None:
    inputs = draw(name)
    expected, before = compute(name, inputs), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            actual = compute(name, inputs)
    finally:
        torch.set_default_dtype(before)
    assert are_equal(actual, expected)


LAYOUTS: dict[str, Change] = {
    "strided": lambda x: torch.stack((x, x), -1)[..., 0],
    "transposed": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "negative": lambda x: torch._neg_view(-x) if x.is_floating_point() else x,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].is_differentiable])
def test_layouts_of_inputs_and_gradients_change_nothing(name, layout) -> None:
    inputs, change = draw(name), LAYOUTS[layout]
    actual = compute(name, tuple(map(change, inputs)), change)
    for a, b in zip(actual, compute(name, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_a_job_is_contiguous_on_a_cpu_and_its_table_owns_its_tensors() -> None:
    total = torch.zeros(4, 6)
    for other in (total.t(), total.to("meta")):
        with pytest.raises(ValueError, match="compiled code needs contiguous tensors on the CPU"):
            jobs._pack(AccumulateJob(24, total, other))
    table = jobs._pack(AccumulateJob(24, total, total))
    assert isinstance(table, ctypes.Array)
    assert table.tensors[0] is total
    assert not is_plain(torch._neg_view(total))  # written in place


def test_loss_of_a_transposed_table_in_bfloat16() -> None:
    hidden, weight = torch.randn(70, 16), torch.randn(16, 40).t()
    target = torch.randint(0, 40, (70,))
    results = []
    for table in (weight, weight.contiguous()):
        leaf = table.detach().requires_grad_()
        with torch.autocast("cpu", BFLOAT16):
            total = token_loss(hidden.requires_grad_(), leaf, None, target).total
        results.append(torch.autograd.grad(total, leaf)[0])
    torch.testing.assert_close(*results)
