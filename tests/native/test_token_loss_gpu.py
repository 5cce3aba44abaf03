"""The GPU kernel of the output layer's loss against float64: in Triton's interpreter, or on a GPU.

Triton also compiles it, without a GPU, for two compute capabilities.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.ops.test_token_loss import check_half_loss

ROOT = Path(__file__).parents[2]
CASES = [
    (dtype, columns)
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
    for columns in (1, 7, 4096, 5001)
]

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


def compile_kernel(target: int, dtype: str) -> bytes:
    """Return the kernel's machine code for a compute capability."""
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource, compile  # noqa: PLC0415

    from regard.native.token_loss_gpu import BLOCK, WARPS, exponentiate_kernel  # noqa: PLC0415

    types = {"scores": f"*{dtype}", "stats": "*fp32", "rows": "i32", "columns": "i32"}
    source = ASTSource(exponentiate_kernel, types | {"BLOCK": "constexpr"}, {(4,): BLOCK})
    options = {"num_warps": WARPS}
    return compile(source, target=GPUTarget("cuda", target, 32), options=options).asm["cubin"]


def run(code: str, **environment: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", f"from tests.native.test_token_loss_gpu import *\n{code}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_exponentials_on_a_gpu_match_float64(case: tuple[torch.dtype, int]) -> None:
    check_exponentials(*case, torch.device("cuda"))


@pytest.mark.gpu
def test_loss_on_a_gpu_equals_float64() -> None:
    check_half_loss(Tensor.cuda)


def test_exponentials_match_float64() -> None:
    code = "for case in CASES:\n    check_exponentials(*case, torch.device('cpu'))"
    run(code, TRITON_INTERPRET="1")


def test_loss_equals_float64_with_the_kernel() -> None:
    code = """
    from dataclasses import replace
    from regard.native.table import OPERATIONS
    from regard.ops import token_loss
    from tests.ops.test_token_loss import check_loss_on_cuda
    token_loss._rows_per_chunk = lambda tokens, table: 100
    name = "exponentiate_rows.cuda"
    OPERATIONS[name] = replace(OPERATIONS[name], accepts=lambda scores: scores.is_cuda)
    check_loss_on_cuda(rows=100)
    assert "regard.native.token_loss_gpu" in sys.modules
    """
    run(textwrap.dedent(code), TRITON_INTERPRET="1")


def test_kernel_compiles() -> None:
    code = """
    for target in (80, 90):
        for dtype in ("fp32", "bf16", "fp16"):
            assert compile_kernel(target, dtype)
    """
    run(textwrap.dedent(code), TRITON_INTERPRET="0")
