"""GPU kernels of the loss and of memories that are written, against the formula in float64.

In Triton's interpreter, or on a GPU. Triton also compiles them, without a GPU, for two compute
capabilities. It decides at its first import whether it interprets: so two other processes run all
checks.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from regard.native.table import OPERATIONS
from regard.ops import token_loss
from regard.ops.delta_rule import Writes, by_chunks, recur
from tests.ops.test_token_loss import check_half_loss, check_loss_on_cuda

ROOT = Path(__file__).parents[2]
CASES = [
    (dtype, columns)
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
    for columns in (1, 7, 4096, 5001)
]
TARGETS = 80, 90

pytest.importorskip("triton")


def check_exponentials(dtype: torch.dtype, columns: int, device: torch.device) -> None:
    """Compare the kernel with float64, and with rows that are not finite."""
    from regard.native.token_loss_gpu import exponentiate_rows  # noqa: PLC0415  # see the variable

    scores = (torch.randn(7, columns) * 20).to(dtype)
    scores[4, columns // 2], scores[5, 0] = float("nan"), float("inf")
    scores[6] = 0
    scores[6, columns // 2] = float("-inf") if columns > 1 else 0
    original = scores.double()
    scores = scores.to(device)
    highest, total = (part.cpu().double() for part in exponentiate_rows(scores))
    assert total[4].isnan()
    assert total[5].isnan()
    finite = [0, 1, 2, 3, 6]
    assert torch.equal(highest[finite], original.amax(1, keepdim=True)[finite])
    expected = (original - highest)[finite].exp()
    # The interpreter truncates to bfloat16, where a GPU rounds.
    error = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    smallest = torch.finfo(dtype).smallest_normal
    difference = (scores.cpu().double()[finite] - expected).abs()
    assert (difference <= error * expected + smallest).all()
    assert (total[finite] / expected.sum(1, keepdim=True) - 1).abs().max() < 1e-5


def check_chunks(device: torch.device) -> None:
    """Compare chunks on a device with the formula in float64."""
    for time, key_dim, value_dim, num_gates in ((5, 7, 5, 2), (130, 33, 40, 2), (65, 16, 3, 1)):
        query, keys = (normalize(torch.randn(2, 3, time, key_dim), dim=-1) for _ in range(2))
        values, decay, strength = (torch.randn(2, 3, time, n) for n in (value_dim, 1, 1))
        gates = [logsigmoid(decay), strength.sigmoid()][:num_gates]
        tensors = query, keys, values, *gates, torch.randn(2, 3, key_dim, value_dim)
        first, *writes, state = (tensor.to(device) for tensor in tensors)
        actual = by_chunks(first, Writes(*writes), state)
        first, *writes, state = (tensor.double() for tensor in tensors)
        for ours, theirs in zip(actual, recur(first, Writes(*writes), state), strict=True):
            torch.testing.assert_close(ours.double().cpu(), theirs, rtol=1e-5, atol=1e-5)


def compile_exponentials(target: int, dtype: str) -> bytes:
    """Return the kernel's machine code for a compute capability."""
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource, compile  # noqa: PLC0415

    from regard.native.token_loss_gpu import BLOCK, WARPS, exponentiate_kernel  # noqa: PLC0415

    types = {"scores": f"*{dtype}", "stats": "*fp32", "rows": "i32", "columns": "i32"}
    source = ASTSource(exponentiate_kernel, types | {"BLOCK": "constexpr"}, {(4,): BLOCK})
    options = {"num_warps": WARPS}
    return compile(source, target=GPUTarget("cuda", target, 32), options=options).asm["cubin"]


def compile_scan(target: int, *, has_old: bool, keys: int) -> int:
    """Compile the kernel for a compute capability; return its bytes of shared memory."""
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource, compile  # noqa: PLC0415

    from regard.native.delta_rule_gpu import COLUMNS, WARPS, scan_kernel  # noqa: PLC0415

    names = scan_kernel.arg_names
    kinds = ["*fp32"] * 9 + ["i32"] * 3 + ["constexpr"] * 4
    constants = {(12,): has_old, (13,): 64, (14,): keys, (15,): COLUMNS}
    source = ASTSource(scan_kernel, dict(zip(names, kinds, strict=True)), constants)
    options = {"num_warps": WARPS, "num_stages": 1}
    compiled = compile(source, target=GPUTarget("cuda", target, 32), options=options)
    assert compiled.asm["cubin"]
    return compiled.metadata.shared


def interpret_exponentials() -> None:
    for case in CASES:
        check_exponentials(*case, torch.device("cpu"))


def interpret_loss() -> None:
    token_loss._rows_per_chunk = lambda tokens, table: 100
    name = "exponentiate_rows.cuda"
    OPERATIONS[name] = replace(OPERATIONS[name], accepts=lambda scores: scores.is_cuda)
    check_loss_on_cuda(rows=100)
    assert "regard.native.token_loss_gpu" in sys.modules


@torch.no_grad()
def interpret_chunks() -> None:
    name = "scan_chunks.cuda"
    OPERATIONS[name] = replace(OPERATIONS[name], accepts=lambda *tensors: True)
    check_chunks(torch.device("cpu"))
    assert "regard.native.delta_rule_gpu" in sys.modules


def compile_kernels_of_the_loss() -> None:
    for target in TARGETS:
        for dtype in ("fp32", "bf16", "fp16"):
            assert compile_exponentials(target, dtype)


def compile_scan_whose_tiles_fit_shared_memory() -> None:
    for target in TARGETS:
        for has_old, keys in ((True, 128), (False, 16)):
            assert compile_scan(target, has_old=has_old, keys=keys) < 99 << 10


CHECKS: dict[str, list[Callable[[], None]]] = {
    "1": [interpret_exponentials, interpret_loss, interpret_chunks],
    "0": [compile_kernels_of_the_loss, compile_scan_whose_tiles_fit_shared_memory],
}
"""Checks by the value of TRITON_INTERPRET with which they run."""


def run_checks(interpret: str) -> None:
    """Print, as JSON, the traceback of each check that failed."""
    failures = {}
    for check in CHECKS[interpret]:
        try:
            check()
        except Exception:  # noqa: BLE001  # the test of this check reports it
            failures[check.__name__] = traceback.format_exc()
    print(json.dumps(failures))


@cache
def failures_of(interpret: str) -> dict[str, str]:
    """Return the tracebacks of the checks that failed in another process."""
    code = f"from tests.native import test_small_kernels_gpu as own; own.run_checks('{interpret}')"
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": interpret},
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_exponentials_on_a_gpu_match_float64(case: tuple[torch.dtype, int]) -> None:
    check_exponentials(*case, torch.device("cuda"))


@pytest.mark.gpu
def test_loss_on_a_gpu_equals_float64() -> None:
    check_half_loss(Tensor.cuda)


@pytest.mark.gpu
@torch.no_grad()
def test_chunks_on_a_gpu_equal_the_formula() -> None:
    check_chunks(torch.device("cuda"))


@pytest.mark.parametrize("check", CHECKS["1"], ids=lambda check: check.__name__)
def test_interpreted_kernels_match_float64(check: Callable[[], None]) -> None:
    failure = failures_of("1").get(check.__name__)
    assert failure is None, failure


@pytest.mark.parametrize("check", CHECKS["0"], ids=lambda check: check.__name__)
def test_kernels_compile(check: Callable[[], None]) -> None:
    failure = failures_of("0").get(check.__name__)
    assert failure is None, failure
