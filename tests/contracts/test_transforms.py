"""Tests of torch.compile and of exports run in a process without shape checks.

Torch can trace no function whose shapes are checked.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEAST = {
    "contracts/untyped_transforms.py": 60,
    "contracts/untyped_flex.py": 9,
    "contracts/untyped_exports.py": 3,
    "attention/untyped_linear.py": 3,
    "attention/untyped_memories.py": 6,
    "training/untyped_compile.py": 7,
    "exchange/untyped_graphs.py": 10,
}
"""For each file, the least number of its tests that run."""

pytestmark = pytest.mark.timeout(2700)  # the first test waits for all files


@pytest.fixture(scope="module")
def result(request: pytest.FixtureRequest) -> subprocess.CompletedProcess[str]:
    """Return the result of one process for all files, as torch's compiler loads slowly."""
    slow = ["--slow"] if request.config.getoption("--slow") else []
    options = ["-v", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *slow, *(f"tests/{name}" for name in LEAST)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", LEAST)
def test_compiled_code_is_correct(name: str, result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 0, result.stdout[-4000:]
    passed = re.findall(rf"^tests/{re.escape(name)}::.+ PASSED", result.stdout, re.MULTILINE)
    assert len(passed) >= LEAST[name]
