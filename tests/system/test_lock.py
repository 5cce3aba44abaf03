"""Directory of a run: locked by one process at a time, found after a move; the lock ends with the
process."""

import os
import signal
import threading
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.system.lock import DirectoryChangedError, RunDirectory, lock_directory


def run_in_child(work) -> int:
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return child


def try_to_lock(folder: Path) -> int:
    try:
        with lock_directory(folder):
            return 0
    except UserError as error:
        return 7 if f"process {os.getppid()} trains in this folder" in str(error) else 8


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_second_process_is_refused_with_the_id_of_the_first(tmp_path: Path) -> None:
    with lock_directory(tmp_path):
        assert exit_code(run_in_child(lambda: try_to_lock(tmp_path))) == 7
    assert exit_code(run_in_child(lambda: try_to_lock(tmp_path))) == 0
    assert list(tmp_path.iterdir()) == []


def test_lock_that_is_held_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    with lock_directory(tmp_path) as first:
        threading.Timer(0.1, first.close).start()
        with lock_directory(tmp_path):
            assert not first.close.alive


def test_second_thread_is_refused(tmp_path: Path) -> None:
    results: list[str] = []

    def work() -> None:
        with pytest.raises(UserError, match="trains in this folder"), lock_directory(tmp_path):
            pass
        results.append("refused")

    with lock_directory(tmp_path):
        other = threading.Thread(target=work)
        other.start()
        other.join()
    assert results == ["refused"]


def test_lock_is_released_when_its_process_is_killed(tmp_path: Path) -> None:
    reads, writes = os.pipe()

    def work() -> int:
        with lock_directory(tmp_path):
            os.write(writes, b"x")
            signal.pause()
        return 0

    child = run_in_child(work)
    os.read(reads, 1)
    with pytest.raises(UserError, match=f"process {child} trains"), lock_directory(tmp_path):
        pass
    os.kill(child, signal.SIGKILL)
    assert exit_code(child) == -signal.SIGKILL
    with lock_directory(tmp_path):
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a folder `a` with a file, and a link to it."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    (tmp_path / "link").symlink_to("a")
    return tmp_path


def test_path_is_as_given_or_resolved_behind_a_link(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert RunDirectory(Path("a")).path == Path("a")
    assert RunDirectory(Path("link")).path == folder / "a"


def test_directory_is_found_after_a_move(folder: Path) -> None:
    directory = RunDirectory(folder / "link")
    (folder / "a").rename(folder / "b")
    (folder / "a").mkdir()
    assert directory.path == folder / "b"
    assert directory.write(lambda root: [path.name for path in root.iterdir()]) == ["file"]
    with pytest.raises(
        DirectoryChangedError,
        match=rf"link is no longer the directory.*now {folder / 'b'}; all is safe",
    ):
        directory.check("all is safe")
    (folder / "a").rmdir()
    (folder / "b").rename(folder / "a")
    directory.check("all is safe")


def test_redirected_link_is_detected(folder: Path) -> None:
    directory = RunDirectory(folder / "link")
    (folder / "other").mkdir()
    (folder / "link").unlink()
    (folder / "link").symlink_to("other")
    assert directory.path == folder / "a"
    with pytest.raises(
        DirectoryChangedError, match="is no longer the directory this training started in"
    ):
        directory.check("")


def test_directory_that_was_removed_cannot_be_written(folder: Path) -> None:
    directory = RunDirectory(folder / "a")
    (folder / "a" / "file").unlink()
    (folder / "a").rmdir()
    for name in ("nothing", "a"):  # another of the same name changes nothing
        (folder / name).mkdir()
        with pytest.raises(
            DirectoryChangedError,
            match="was removed, or can no longer be found; nothing more was saved",
        ):
            directory.path  # noqa: B018


@pytest.mark.parametrize("is_linux", [True, False])
def test_work_interrupted_by_a_move_is_completed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_linux: bool
) -> None:
    directory, roots = RunDirectory(folder / "a"), []
    if not is_linux:
        real = RunDirectory._is
        monkeypatch.setattr(
            RunDirectory,
            "_is",
            lambda self, path: not str(path).startswith("/proc") and real(self, path),
        )

    def work(root: Path) -> list[str]:
        roots.append(root)
        if len(roots) == 1:
            (folder / "a").rename(folder / "b")
            (folder / "a").mkdir()
        return [(root / "file").read_text() or root.name]

    def read(root: Path) -> str:
        try:
            return str(work(root))
        except FileNotFoundError as error:
            raise UserError(f"{root}/file: cannot be read") from error

    directory.write(read)
    assert len(roots) == (1 if is_linux else 2)
    assert os.path.samefile(roots[-1], folder / "b")


def test_errors_name_the_path_of_the_directory(folder: Path) -> None:
    def work(root: Path) -> None:
        raise UserError(f"{root / 'file'}: the disk is full")

    with pytest.raises(UserError, match=rf"^{folder / 'a' / 'file'}: the disk is full$"):
        RunDirectory(folder / "a").write(work)
