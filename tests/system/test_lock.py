"""Lock of a folder: held by one process at a time; it ends with the process."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.system.lock import lock_folder


def run_in_child(work: Callable[[], int]) -> int:
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return child


def hold(folder: Path, ready: int) -> int:
    with lock_folder(folder):
        os.write(ready, b"x")
        signal.pause()
    return 0


@pytest.mark.parametrize("system", ["posix", "windows"])
def test_second_process_is_refused_until_the_first_is_killed(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if system == "windows":
        monkeypatch.setattr("regard.system.lock.fcntl", None)
    reads, writes = os.pipe()
    child = run_in_child(lambda: hold(tmp_path, writes))
    try:
        os.read(reads, 1)
        refused = pytest.raises(UserError, match="another process works in this folder")
        with refused, lock_folder(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    with lock_folder(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_lock_can_be_nested_and_folder_is_created(tmp_path: Path) -> None:
    for _ in range(2):
        with lock_folder(tmp_path / "a" / "b"), lock_folder(tmp_path / "a" / "b"):
            assert (tmp_path / "a" / "b").is_dir()
