"""The GPU kernel of memories that are written: in Triton's interpreter, or on a GPU.

Triton also compiles it, without a GPU, for two compute capabilities.
"""

import textwrap

import pytest
import torch
from torch.nn.functional import logsigmoid, normalize

from regard.ops.delta_rule import Writes, by_chunks, recur
from tests.native.test_token_loss_gpu import run

pytest.importorskip("triton")
HEADER = "from tests.native.test_delta_rule_gpu import *\n"


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


def compile_kernel(target: int, *, has_old: bool, keys: int) -> int:
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


@pytest.mark.gpu
@torch.no_grad()
def test_chunks_on_a_gpu_equal_the_formula() -> None:
    check_chunks(torch.device("cuda"))


def test_chunks_in_the_kernel_equal_the_formula() -> None:
    code = """
    from dataclasses import replace
    from regard.native.table import OPERATIONS
    name = "scan_chunks.cuda"
    OPERATIONS[name] = replace(OPERATIONS[name], accepts=lambda *tensors: True)
    check_chunks(torch.device("cpu"))
    assert "regard.native.delta_rule_gpu" in sys.modules
    """
    run(HEADER + textwrap.dedent(code), TRITON_INTERPRET="1")


def test_kernel_compiles_and_its_tiles_fit_shared_memory() -> None:
    code = """
    for target in (80, 90):
        for has_old, keys in ((True, 128), (False, 16)):
            assert compile_kernel(target, has_old=has_old, keys=keys) < 99 << 10
    """
    run(HEADER + textwrap.dedent(code), TRITON_INTERPRET="0")
