"""The GPU kernels of additive attention against the formula: in Triton's interpreter, or on a GPU.

The cases are in `additive_gpu_cases`; without `--device cuda` a single separate process runs them
all.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.native.additive_gpu_cases import CASES, check

ROOT = Path(__file__).parents[2]

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def run(*arguments: str, **environment: str) -> str:
    """Return the output of a new Python process."""
    command = [sys.executable, *arguments]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    process = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=variables, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def interpreted(request: pytest.FixtureRequest) -> dict[str, Any] | None:
    """Return the traceback of each case, empty if it passed; None if a GPU runs the cases."""
    if request.config.getoption("--device") != "cpu":
        return None
    printed = run(
        "-m", "tests.native.additive_gpu_cases", TRITON_INTERPRET="1", OMP_NUM_THREADS="1"
    )
    return json.loads(printed.splitlines()[-1])


@needs_triton
@pytest.mark.parametrize("name", CASES)
def test_kernels_equal_the_formula(
    name: str, interpreted: dict[str, Any] | None, gpu: torch.device
) -> None:
    if interpreted is None:
        check(CASES[name], gpu)
    else:
        assert not interpreted[name], interpreted[name]


@needs_triton
def test_a_read_and_its_backward_take_seven_launches(interpreted: dict[str, Any] | None) -> None:
    if interpreted is None:
        pytest.skip("counted in the interpreter")
    forward, backward = interpreted["launches"]
    assert forward == ["prepare_kernel", "read_kernel", "merge_kernel"]
    assert backward == ["prepare_kernel", "query_kernel", "keys_kernel", "finish_kernel"]


_REFUSALS = """
import sys
import torch

sys.modules["triton"] = None
try:
    import regard.native.additive.gpu.call
except ImportError as error:
    print(error)
del sys.modules["triton"]
if sys.argv[1] == "True":
    from regard.native.additive.gpu.call import forward

    query = torch.zeros(1, 1, 2, 3)
    try:
        forward(query, query, query, query[0, :, 0], None, None, None, None, None)
    except ValueError as error:
        print(error)
"""


def test_missing_triton_and_tensors_on_a_cpu_are_refused() -> None:
    has_triton = importlib.util.find_spec("triton") is not None
    missing, *others = run("-c", _REFUSALS, str(has_triton), TRITON_INTERPRET="0").splitlines()
    assert missing.endswith("pip install triton")
    if has_triton:
        assert others[0].startswith("query must be on a GPU for this kernel, got cpu")
