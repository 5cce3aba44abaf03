"""Fused additive attention on a CPU equals the formula, for finite inputs and any threads."""

import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.kernels import additive
from regard.attention.memory import Memory
from regard.attention.scores import Additive, BareAdditive
from regard.native import threads
from regard.native.additive.cpu import call
from regard.ops import additive as additive_op
from regard.ops.additive import MAX_EXP_INPUT, additive_read, is_step
from tests.helpers import close
from tests.native.additive_gpu_cases import ALL, CASES, Case, check_kernel

LARGE = {
    "several tiles and blocks": Case(sizes=(1, 2, 1, 70, 150, 20, 18)),
    "several tiles, a mask": Case(
        sizes=(2, 2, 2, 37, 130, 17, 5), allowed=(2, 1, 37, 130), masked_row=True
    ),
    "several tiles, causal": Case(sizes=(1, 3, 3, 97, 97, 5, 7), last=(1, 1, 97), v_heads=1),
    "several tiles, a window": Case(
        sizes=(1, 1, 1, 80, 200, 9, 4), first=(1, 1, 80), last=(1, 1, 80)
    ),
    "several tiles, everything": Case(
        sizes=(2, 4, 2, 40, 70, 6, 3),
        first=(2, 4, 40),
        last=(2, 1, 40),
        allowed=(1, 4, 40, 70),
        bias=(2, 1, 40, 1),
        diagonals=(1, 4, 109),
        masked_row=True,
    ),
    "several tiles, parts that overflow alone": Case(sizes=(1, 1, 1, 40, 70, 6, 3), far=400.0),
    "float32, several tiles, parts that overflow alone": Case(
        sizes=(1, 2, 1, 40, 70, 6, 3), far=64.0, dtype=torch.float32
    ),
    "several tiles, a bias of all heads": Case(sizes=(2, 3, 1, 40, 70, 6, 3), bias=(1, 1, 40, 70)),
    "one query, several tiles": Case(
        sizes=(3, 2, 1, 1, 150, 20, 18), first=(3, 2, 1), allowed=(3, 1, 1, 150)
    ),
    "two queries, one fully masked": Case(
        sizes=(1, 1, 1, 2, 9, 3, 2), last=(1, 1, 2), masked_row=True
    ),
    "fully masked queries": Case(
        sizes=(1, 1, 1, 3, 9, 3, 2), last=(1, 1, 1), first=(1, 1, 3), masked_row=True
    ),
    "one query, some gradients": Case(
        sizes=(1, 1, 1, 1, 9, 3, 2), needs=(True, True, False, True, False, False)
    ),
}


@pytest.fixture
def use_threads(monkeypatch):
    """Return a function that sets the number of threads, also for small inputs."""
    monkeypatch.setattr(call, "_MIN_WORK_PER_THREAD", 1)
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", [*CASES, *LARGE])
@pytest.mark.parametrize("workers", [1, 2])
def test_kernel_equals_the_formula(use_threads, name, workers):
    use_threads(workers)
    check_kernel({**CASES, **LARGE}[name], torch.device("cpu"), call.forward, call.backward)


def make_inputs(*sizes: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Return query, keys, values, v: batch, head, key_head, query, key, dim, value_dim."""
    batch, heads, key_heads, num_queries, num_keys, dim, value_dim = sizes
    keys = batch, key_heads, num_keys
    shapes = (batch, heads, num_queries, dim), (*keys, dim), (*keys, value_dim), (heads, dim)
    return tuple(torch.randn(shape, dtype=dtype) for shape in shapes)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 5e-7), (torch.float64, 1e-14)])
@pytest.mark.parametrize("num_queries", [1, 7])
def test_tanh_error_is_within_the_stated_bound_for_every_finite_pair(dtype, bound, num_queries):
    points = torch.tensor([
        0.0, 1e-30, 1e-4, 0.3, 1, 5, 9, 17, 21, 32.9, 33.1, 42.9, 43.1, 44, 59, 60, 329, 351, 1e4,
        1e38,
    ])  # fmt: skip
    points = torch.cat((-points, points)).to(dtype)
    for shifts in (
        torch.zeros(1, dtype=dtype),
        torch.tensor([1.0, -1, 30, -34, 60, -400, 1e6], dtype=dtype),
    ):
        left, right = (
            x.flatten()
            for x in torch.meshgrid(points, torch.cat((points, -points + 0.7)), indexing="ij")
        )
        for shift in shifts:
            query, keys = left + shift, right - shift
            # One key per read, so that its log-sum-exp is its score; one hidden unit, with v = 1.
            query = query.view(-1, 1, 1, 1).expand(-1, -1, num_queries, -1)
            keys = keys.view(-1, 1, 1, 1)
            _, lse = additive_read(
                query, keys, torch.ones_like(keys), torch.ones(1, 1, dtype=dtype)
            )
            exact = torch.tanh(query[:, :, :, 0].double() + keys[:, :, :, 0].double())
            assert (lse.double() - exact).abs().max() <= bound


def test_nan_propagates_only_to_rows_that_read_it():
    query, keys, values, v = make_inputs(1, 1, 1, 6, 80, 5, 3)
    keys[0, 0, 70, 2] = math.nan
    last = torch.tensor([80, 70, 71, 5, 70, 80]).view(1, 1, 6)
    out, _ = additive_read(query, keys, values, v, last=last)
    assert out.isnan().all(-1).flatten().tolist() == [True, False, True, False, False, True]


@pytest.mark.parametrize("sizes", [(2, 4, 2, 33, 70, 18, 7), (3, 2, 2, 1, 50, 18, 7)])
def test_results_do_not_depend_on_the_assignment_of_threads(use_threads, sizes):
    query, keys, values, v = make_inputs(*sizes)
    bias = torch.randn(1, 1, sizes[3], sizes[4])
    gradient = torch.randn(*sizes[:2], sizes[3], sizes[6])
    arguments = query, keys, values, v, None, None, None, bias, None, None

    def run() -> list[Tensor]:
        out, lse = call.forward(*arguments)
        gradients = call.backward(gradient, *arguments, out, lse, (True,) * 5 + (False,))
        return [out, lse, *(x for x in gradients if x is not None)]

    use_threads(2)
    first = run()
    for _ in range(20):
        assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))


def test_python_threads_equal_openmp_threads(use_threads, monkeypatch):
    arguments = (*make_inputs(2, 4, 2, 33, 70, 18, 7), *(None,) * 6)
    use_threads(2)
    expected, _ = call.forward(*arguments)
    monkeypatch.setattr(threads, "load_parallel", lambda: None)
    assert torch.equal(call.forward(*arguments)[0], expected)


@pytest.mark.parametrize("sizes", [(2, 4, 2, 1, 70, 18, 7), (2, 2, 2, 4, 5, 3, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cached_exponentials_change_nothing(sizes, dtype):
    query, keys, values, v = make_inputs(*sizes, dtype=dtype)
    assert is_step(query, keys)
    rules = (
        torch.randint(1, sizes[4], (2, 1, sizes[3])),
        None,
        None,
        torch.randn(2, 1, sizes[3], sizes[4], dtype=dtype),
        None,
    )
    results = []
    for exps in (None, (2 * keys).exp()):
        out, lse = call.forward(query, keys, values, v, *rules, exps)
        gradients = call.backward(
            torch.ones_like(out), query, keys, values, v, *rules, exps, out, lse, ALL
        )
        results.append([out, lse, *(x for x in gradients if x is not None)])
    for a, b in zip(*results, strict=True):
        close(a, b)


def check_read(query: Tensor, memory: Memory, score: Additive) -> None:
    expected = attend(query, memory, score=score, kernel="reference")
    close(attend(query, memory, score=score), expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("score", [BareAdditive(3), Additive(3, 3, 6)])
def test_steps_read_keys_that_were_changed_in_place(mode, score):
    with mode():
        query, keys, values = (torch.randn(2, n, 3) for n in (1, 70, 70))
        memory = Memory(keys, values).map_keys_with(score)
        for change in (None, None, None, 2.0, None, None, -1.0):
            if change is not None:
                memory.keys[0, 3:].mul_(change)
            check_read(query, memory, score)


def test_a_memory_caches_exponentials_for_later_steps_only_while_they_are_valid(monkeypatch):
    exps_of_calls: list[Tensor | None] = []

    def spy(*arguments: Tensor | None) -> tuple[Tensor, Tensor]:
        exps_of_calls.append(arguments[-1])
        return additive_read(*arguments)

    monkeypatch.setattr(additive, "additive_read", spy)
    score = Additive(3, 3, hidden=6)
    memory = Memory(torch.randn(2, 9, 3), torch.randn(2, 9, 4)).map_keys_with(score)

    def step(memory: Memory) -> bool:
        """Check the read against the formula and return True if it used cached exponentials."""
        check_read(torch.randn(2, 1, 3), memory, score)
        return exps_of_calls.pop() is not None

    assert [step(memory) for _ in range(4)] == [False, True, True, True]
    with torch.no_grad():
        memory.keys[1, 2] += 1
    assert [step(memory) for _ in range(3)] == [False, True, True]
    assert not step(memory.crop(5))
    memory.keys.data[0, 0, 0] = MAX_EXP_INPUT + 1
    with torch.no_grad():
        memory.keys.mul_(1)
    assert [step(memory) for _ in range(3)] == [False, False, False]
    unmapped = Memory(torch.randn(2, 9, 3), torch.randn(2, 9, 4))
    for _ in range(3):
        attend(torch.randn(2, 1, 3), unmapped, score=score)
        assert exps_of_calls.pop() is None


def test_cached_exponentials_serve_batches_of_any_size_that_read_one_memory():
    score = Additive(3, 3, hidden=6)
    memory = Memory(torch.randn(1, 9, 3), torch.randn(1, 9, 4)).map_keys_with(score)
    for rows in (3, 3, 5, 1, 2):
        check_read(torch.randn(rows, 1, 3), memory, score)


def test_cached_exponentials_are_of_the_keys_and_not_of_a_rounded_copy():
    score = Additive(3, 3, hidden=6)
    memory = Memory(torch.randn(2, 9, 3), torch.randn(2, 9, 4)).map_keys_with(score)
    query = torch.randn(2, 1, 3)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            attend(query, memory, score=score)
    check_read(query, memory, score)
    with torch.no_grad():
        memory.keys.neg_()
    with torch.autocast("cpu", torch.bfloat16):
        actual = attend(query, memory, score=score).float()
    assert (actual - attend(query, memory, score=score, kernel="reference")).abs().max() < 0.05


def test_second_derivatives_raise_and_name_the_reference_kernel():
    query, keys, values, v = (x.requires_grad_() for x in make_inputs(1, 1, 1, 5, 4, 3, 2))
    out, lse = additive_read(query, keys, values, v)
    assert not lse.requires_grad
    (slope,) = torch.autograd.grad(out.sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivatives; use attend.*'reference'"):
        slope.sum().backward()


def test_gradcheck_of_the_operator():
    inputs = tuple(
        x.requires_grad_() for x in make_inputs(1, 2, 1, 5, 4, 3, 2, dtype=torch.float64)
    )
    bias = torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda query, keys, values, v, bias: additive_read(query, keys, values, v, bias=bias)[0],
        (*inputs, bias),
    )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"keys": torch.zeros(1, 1, 4, 2)}, ValueError, "must have batch 1, and keys size 3"),
        ({"keys": torch.zeros(1, 1, 4, 3).double()}, TypeError, "keys must have the dtype"),
        ({"values": torch.zeros(1, 1, 5, 2)}, ValueError, "keys and values must have batch 1"),
        ({"v": torch.zeros(2, 3)}, ValueError, r"v must have shape \(1 or 1, 3\)"),
        ({"bias": torch.zeros(1, 1, 5, 3)}, ValueError, "bias must broadcast to"),
        ({"first": torch.zeros(1, 2, 5, dtype=torch.long)}, ValueError, "first must broadcast to"),
        ({"exps": torch.zeros(1, 1, 5, 3)}, ValueError, r"exps must be \(1, 1, 4, 3\)"),
    ],
)
def test_mismatched_inputs_raise_with_their_name(no_shape_checks, change, error, message):
    query, keys, values, v = make_inputs(1, 1, 1, 5, 4, 3, 2)
    with pytest.raises(error, match=message):
        additive_read(**{"query": query, "keys": keys, "values": values, "v": v, **change})


SHAPES = [(2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 4), (1, 5), (2, 1, 3, 6), (1, 4, 3, 6), (2, 1, 8)]
"""Of query, keys, values, v, allowed, bias and diagonals."""


@pytest.mark.parametrize("mapped", ["0000000", "2103013", "0....3.", "...1.1.", ".2..0.1"])
def test_copies_under_vmap_are_read_at_once_and_equal_single_ones(mapped, monkeypatch):
    dims = [None if dim == "." else min(int(dim), 2) for dim in mapped]
    inputs = []
    for dim, size in zip(dims, SHAPES, strict=True):
        shape = size if dim is None else (*size[:dim], 3, *size[dim:])
        inputs.append(torch.randn(shape).double())
    inputs[4] = inputs[4] > -1

    def total(*inputs: Tensor) -> Tensor:
        pairs, rules = inputs[:4], inputs[4:]
        return additive_read(*pairs, None, None, *rules)[0].square().sum()

    gradients, calls = torch.func.grad(total, (0, 1, 2, 3, 5, 6)), []
    load = additive_op._load_kernel
    monkeypatch.setattr(additive_op, "_load_kernel", lambda device: calls.append(1) or load(device))
    of_copies = torch.func.vmap(gradients, tuple(dims))(*inputs)
    assert len(calls) == 2
    for copy in range(3):
        own = []
        for x, dim in zip(inputs, dims, strict=True):
            own.append(x if dim is None else x.select(dim, copy))
        for some, alone in zip(of_copies, gradients(*own), strict=True):
            close(some[copy], alone)


def test_importing_the_operator_loads_no_compiler():
    program = "import sys, regard.attention.attend; print({'numba', 'triton'} & {*sys.modules})"
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert output.strip() == "set()"


def test_operator_passes_opcheck():
    inputs = tuple(
        x.requires_grad_() for x in make_inputs(1, 2, 1, 5, 4, 3, 2, dtype=torch.float64)
    )
    torch.library.opcheck(torch.ops.regard.additive_read.default, (*inputs, *(None,) * 6))
    assert additive_op.MAX_EXP_INPUT < 43


@pytest.mark.parametrize(("key", "device"), [("CPU", "cpu"), ("CUDA", "cuda")])
def test_operator_calls_the_implementation_of_its_device(monkeypatch, key, device):
    devices, inputs, loops = [], make_inputs(1, 1, 1, 2, 3, 5, 7), additive_op._load_kernel("cpu")
    monkeypatch.setattr(additive_op, "_load_kernel", lambda name: devices.append(name) or loops)
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    out, _ = torch.ops.regard.additive_read.default.redispatch(keys, *inputs, *[None] * 6)
    assert devices == [device]
    close(out, loops[0](*inputs, *[None] * 6)[0])
