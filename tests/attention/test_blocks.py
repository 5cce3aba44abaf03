"""Reads with a window, in blocks of queries, equal those by the formula: outputs and gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.choices import Soft
from regard.attention.kernels import sdpa
from regard.attention.masks import Mask, causal, dense, documents, padding, window
from regard.attention.memory import Memory, SlidingMemory
from tests.devices.pretended import pretended_cuda
from tests.helpers import close

ROWS, HEADS, TIME = 3, 2, 397
LENGTHS = [397, 150, 7]
IDS = torch.arange(TIME).div(40, rounding_mode="floor").expand(ROWS, TIME)
MASKS: dict[str, tuple[Mask, Any]] = {
    "last": (window(9), lambda b, i, j: (j <= i) & (j > i - 9)),
    "around": (window(21, ahead=10), lambda b, i, j: (i - j).abs() <= 10),
    "itself": (window(1), lambda b, i, j: i == j),
    "wide": (window(131, ahead=3), lambda b, i, j: (j <= i + 3) & (j > i - 128)),
    "padding": (
        padding(LENGTHS) & window(15, ahead=7),
        lambda b, i, j: ((i - j).abs() <= 7) & (j < b),
    ),
    "causal": (window(15, ahead=7) & causal(), lambda b, i, j: (j <= i) & (j >= i - 7)),
    "two windows": (window(9) & window(9, ahead=6), lambda b, i, j: (j <= i) & (j > i - 3)),
    "documents": (
        window(9, ahead=4) & documents(IDS),
        lambda b, i, j: ((i - j).abs() <= 4) & (i // 40 == j // 40),
    ),
}


def tensors(*leading: int, heads: int = HEADS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    sizes = (*leading, HEADS, TIME, 5), (*leading, heads, TIME, 5), (*leading, heads, TIME, 4)
    return [
        torch.randn(size, dtype=torch.float64, generator=generator).requires_grad_()
        for size in sizes
    ]


def allowed_pairs(name: str) -> Tensor:
    at = torch.arange(TIME)
    rows = [MASKS[name][1](length, at[:, None], at[None]) for length in LENGTHS]
    return torch.stack(rows)


@pytest.mark.parametrize("heads", [1, HEADS])
@pytest.mark.parametrize("name", MASKS)
def test_a_read_in_blocks_is_the_formula(name, heads, monkeypatch):
    inputs, calls = tensors(ROWS, heads=heads), []
    read = sdpa._read_blocks
    monkeypatch.setattr(sdpa, "_read_blocks", lambda *x, **y: calls.append(1) or read(*x, **y))
    query, keys, values = inputs
    out = attend(query, Memory(keys, values), mask=MASKS[name][0], kernel="sdpa")
    assert calls
    expected = attend(
        query, Memory(keys, values), mask=dense(allowed_pairs(name)), kernel="reference"
    )
    close(out, expected)
    direction = torch.randn_like(out)
    gradients = [torch.autograd.grad((x * direction).sum(), inputs) for x in (out, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        close(ours, theirs)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("wide", {"time": 380}),
        ("around", {"bias": torch.zeros(TIME, TIME)}),
        ("around", {"queries": 396}),
        ("documents", {"ids": torch.arange(TIME).remainder(2).expand(ROWS, TIME)}),
        ("around", {"leading": (ROWS, 1)}),
    ],
)
def test_other_reads_are_whole(name, options, monkeypatch):
    monkeypatch.setattr(sdpa, "_read_blocks", lambda *x, **y: pytest.fail("in blocks"))
    time, mask = options.get("time", TIME), MASKS[name][0]
    query, keys, values = tensors(*options.get("leading", (ROWS,)))
    if "ids" in options:
        mask = window(9, ahead=4) & documents(options["ids"])
    query = query[..., TIME - options.get("queries", time) : time, :]
    memory = Memory(keys[..., :time, :], values[..., :time, :])
    bias = options.get("bias")
    results = [
        attend(query, memory, mask=mask, bias=bias, kernel=kernel)
        for kernel in ("sdpa", "reference")
    ]
    close(*results)


@pytest.mark.parametrize(("name", "rows"), [("padding", ROWS), ("around", 1)])
def test_on_a_gpu_reads_with_large_masks_are_in_blocks(name, rows, monkeypatch):
    calls, read = [], sdpa._read_blocks
    monkeypatch.setattr(sdpa, "_read_blocks", lambda *x, **y: calls.append(1) or read(*x, **y))
    inputs, size = tensors(ROWS), rows * TIME**2
    expected = attend(inputs[0], Memory(*inputs[1:]), mask=MASKS[name][0])
    calls.clear()
    with pretended_cuda() as device:
        query, *memory = (tensor.to("cuda") for tensor in inputs)
        for most, is_in_blocks in ((size, False), (size - 1, True)):
            monkeypatch.setattr(sdpa, "MAX_KEPT", most)
            out = attend(query, Memory(*memory), mask=MASKS[name][0])
            assert calls == [1] * is_in_blocks
            close(out.cpu(), expected)
        reads = len(device.reads)
        gradients = torch.autograd.grad(out.sum(), inputs)
    assert reads == len(device.reads) - len(inputs)
    for ours, theirs in zip(gradients, torch.autograd.grad(expected.sum(), inputs), strict=True):
        close(ours, theirs)


def test_a_memory_that_begins_later_is_read_whole():
    query, keys, values = tensors(ROWS)
    first = Memory(keys[..., :20, :], values[..., :20, :])
    memory = SlidingMemory.of(first, window=1).extend(keys, values)
    close(attend(query, memory, mask=window(9), kernel="sdpa"), values)


def test_the_band_of_two_windows_is_their_intersection():
    assert MASKS["two windows"][0].band == (2, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("beta", [1.5, "learned"])
def test_blocks_in_other_dtypes(dtype, beta):
    query, keys, values = (tensor.detach().to(dtype) for tensor in tensors(ROWS))
    factor = torch.tensor([[[0.5]], [[2.0]]]) if beta == "learned" else beta
    choice = Soft(factor, learn=beta == "learned")
    memory, mask = Memory(keys, values), MASKS["padding"][0]
    out = attend(query, memory, mask=mask, choice=choice, kernel="sdpa")
    assert out.dtype == dtype
    wide = Memory(keys.double(), values.double())
    expected = attend(query.double(), wide, mask=mask, choice=choice, kernel="reference")
    bound = {torch.float32: 1e-5}.get(dtype, 2e-2)
    torch.testing.assert_close(out.detach().double(), expected.detach(), rtol=bound, atol=bound)
