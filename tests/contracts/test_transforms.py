"""Tests of torch.compile run in processes without shape checks, which its compiler cannot trace."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "at_least"), [("untyped_transforms.py", 30), ("untyped_flex.py", 5), ("untyped_choices.py", 30)]
)
def test_compiled_code_is_correct(name: str, at_least: int) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"tests/contracts/{name}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed is not None
    assert int(passed[1]) >= at_least
