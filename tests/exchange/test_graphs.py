"""Tests of exported graphs run in a process without shape checks, which torch cannot trace."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(1800)
def test_exported_graphs_are_correct(request: pytest.FixtureRequest) -> None:
    options = ["-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    is_slow = request.config.getoption("--slow")
    options += ["--slow"] if is_slow else []
    command = [sys.executable, "-m", "pytest", *options, "tests/exchange/untyped_graphs.py"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-4000:]
    assert int(re.findall(r"(\d+) passed", result.stdout)[0]) == (50 if is_slow else 10)
