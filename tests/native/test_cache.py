"""Compiled code is loaded by the next process, and recompiled if the file is damaged."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from numba.core import caching

from regard.native import cache as compiled_cache

ROOT = Path(__file__).parents[2]
CODE = """
import ctypes
import logging
from numba import njit, types
from regard.native import cache as compiled_cache

compiled = []
logging.basicConfig(level=logging.INFO)
logging.getLogger().handlers[0].emit = compiled.append

def make(number):
    def inner(x):
        return x + number
    inner = njit(inner)
    def run(x):
        return inner(x) * 2
    return run

function = compiled_cache.compile_cached_c(make(1), types.int64(types.int64), stamp="one")
print(function.ctypes(5), end=" ")
print(compiled_cache.compile_cached(make(3), stamp="one")(5), end=" ")
print(sum(record.name == compiled_cache.__name__ for record in compiled))
"""


def run_code(cache: Path) -> str:
    (cache / "code.py").write_text(CODE, encoding="utf-8")
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache / "kept"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(cache / "code.py")]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def cached_files(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.nbc"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    assert run_code(folder) == "12 16 2"
    assert len(cached_files(folder)) == 2
    return folder


def test_closure_over_compiled_functions_is_found_by_another_process(cache: Path) -> None:
    assert run_code(cache) == "12 16 0"
    assert len(cached_files(cache)) == 2


def _flip(path: Path, _: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "cut": lambda path, _: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path, _: os.truncate(path, 0),
    "flipped": _flip,
    "of another function": lambda path, other: path.write_bytes(other.read_bytes()),
}
"""Changes of a file of compiled code, with that of another function at hand."""


def test_damaged_file_is_recompiled_and_replaced(tmp_path, monkeypatch, caplog) -> None:
    def call(number: int) -> int:
        """Return number + 1, by a function that is compiled or loaded anew."""
        return compiled_cache.compile_cached(lambda x: x + number, stamp="one")(1)

    monkeypatch.setattr(compiled_cache.config, "CACHE_DIR", str(tmp_path))
    assert call(1) == 2
    (path,) = cached_files(tmp_path)
    assert call(2) == 3
    other = next(own for own in cached_files(tmp_path) if own != path)
    with caplog.at_level(logging.INFO, compiled_cache.__name__):
        for name, damage in DAMAGES.items():
            damage(path, other)
            damaged = path.read_bytes()
            caplog.clear()
            assert call(1) == 2, name
            assert len(caplog.records) == 1, name
            assert path.read_bytes() != damaged, name
        caplog.clear()
        assert call(1) == 2
    assert not caplog.records


def test_process_waits_for_another_that_compiles_the_same_function(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(compiled_cache.config, "CACHE_DIR", str(tmp_path))

    def run() -> Any:
        return compiled_cache.compile_cached(lambda x: x + 1, stamp="one")

    assert run()(1) == 2
    (path,) = tmp_path.rglob("*.nbc")
    content = path.read_bytes()
    path.unlink()
    lock = FileLock(path.with_suffix(".lock"))
    lock.acquire()
    is_missed = threading.Event()
    monkeypatch.setattr(compiled_cache._LOG, "info", lambda *_, **__: is_missed.set())
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(run(), 1)
        assert is_missed.wait(60)
        path.write_bytes(content)  # as the other process does when it has compiled
        saved = path.stat()
        lock.release()
        assert answer.result(60) == 2
    assert os.path.samestat(path.stat(), saved)  # compiling would have replaced the file


def test_folder_that_cannot_be_written_to_is_read(tmp_path, monkeypatch, caplog) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    def run(number: int) -> Any:
        return compiled_cache.compile_cached(lambda x: x + number, stamp="one")

    monkeypatch.setattr(compiled_cache.config, "CACHE_DIR", str(tmp_path))
    assert run(1)(1) == 2
    files = cached_files(tmp_path)
    monkeypatch.setattr(caching.tempfile, "TemporaryFile", refuse)
    monkeypatch.setattr(Path, "write_bytes", refuse)
    with caplog.at_level(logging.INFO, compiled_cache.__name__):
        caplog.clear()  # the command line, if a test has used it, logs this level already
        assert run(1)(1) == 2
        assert not caplog.records
        assert run(2)(1) == 3
    assert "compiling" in caplog.text
    assert cached_files(tmp_path) == files


def test_compilation_without_cache_folder_is_logged(monkeypatch, caplog) -> None:
    def no_folder(*_: object) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(compiled_cache, "_Cache", no_folder)
    with caplog.at_level(logging.INFO, compiled_cache.__name__):
        function = compiled_cache.compile_cached(lambda x: x + 1, stamp="one")
        assert function(1) == 2
        assert function(2) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "compiling for this process alone: no folder can be written to"
    ]


def test_disabled_jit_raises() -> None:
    code = "import regard.native.cache"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "UserError: NUMBA_DISABLE_JIT is set" in process.stderr


READ = """
import hashlib
import torch
from regard.ops.additive import additive_read

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = [(3 * torch.randn(1, 2, count, 64)).requires_grad_() for count in (64, 128, 128)]
v = torch.randn(2, 64, requires_grad=True)
out, lse = additive_read(*inputs, v)
results = [out, lse, *torch.autograd.grad(out.sin().sum(), (*inputs, v))]
print(hashlib.sha256(b"".join(x.detach().numpy().tobytes() for x in results)).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_process_that_compiles_computes_the_bits_of_those_that_load(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", READ]
    results = [subprocess.check_output(command, env=environment, text=True) for _ in range(2)]
    assert len(results[0]) == 65
    assert results[0] == results[1]
