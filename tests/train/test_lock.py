"""One process at a time in a run folder; the lock ends with the process."""

import os
import signal
import threading
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.train.lock import held


def in_a_child(work) -> int:
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return child


def refused(folder: Path) -> int:
    try:
        with held(folder):
            return 0
    except UserError as error:
        return 7 if f"process {os.getppid()} trains in this folder" in str(error) else 8


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_second_process_is_refused_with_the_first_ones_number(tmp_path: Path) -> None:
    with held(tmp_path), held(tmp_path):
        assert ended(in_a_child(lambda: refused(tmp_path))) == 7
    assert ended(in_a_child(lambda: refused(tmp_path))) == 0
    assert list(tmp_path.iterdir()) == []


def test_second_thread_is_refused(tmp_path: Path) -> None:
    found: list[str] = []

    def work() -> None:
        with pytest.raises(UserError, match="trains in this folder"), held(tmp_path):
            pass
        found.append("refused")

    with held(tmp_path):
        other = threading.Thread(target=work)
        other.start()
        other.join()
    assert found == ["refused"]


def test_lock_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    reads, writes = os.pipe()

    def work() -> int:
        with held(tmp_path):
            os.write(writes, b"x")
            signal.pause()
        return 0

    child = in_a_child(work)
    os.read(reads, 1)
    with pytest.raises(UserError, match=f"process {child} trains"), held(tmp_path):
        pass
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    with held(tmp_path):
        pass
