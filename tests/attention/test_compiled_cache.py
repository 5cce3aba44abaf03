"""What was compiled is found by the next process, and compiled anew where the file is damaged."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import ctypes
from numba import njit, types
from regard.attention.kernels import compiled_cache
from numba.core.ccallback import CFunc

compiled = []
real = CFunc._compile_uncached
CFunc._compile_uncached = lambda self: compiled.append(1) or real(self)

def make(number):
    def inner(x):
        return x + number
    inner = njit(inner)
    def run(x):
        return inner(x) * 2
    return run

for number in (1, 3):
    made = compiled_cache.kept_c_function(make(number), types.int64(types.int64), stamp="one")
    print(made.ctypes(5), end=" ")
print(len(compiled))
"""


def ran(cache: Path) -> str:
    (cache / "code.py").write_text(CODE, encoding="utf-8")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache / "kept"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(cache / "code.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def files(cache: Path) -> list[Path]:
    return sorted((cache / "kept").rglob("*.nbc"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    assert ran(tmp_path) == "12 16 2"
    assert len(files(tmp_path)) == 2
    return tmp_path


def test_function_that_closes_over_compiled_ones_is_found_by_another_process(cache: Path) -> None:
    assert ran(cache) == "12 16 0"
    assert len(files(cache)) == 2


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: os.truncate(path, path.stat().st_size // 2),
        lambda path: os.truncate(path, 0),
        _flip,
        lambda path: path.write_bytes(files(path.parents[2])[1].read_bytes()),
    ],
    ids=["cut", "empty", "flipped", "of another function"],
)
def test_damaged_file_is_compiled_anew_and_mended(cache: Path, harm: Callable[[Path], object]) -> None:
    harm(files(cache)[0])
    assert ran(cache) == "12 16 1"
    assert ran(cache) == "12 16 0"
