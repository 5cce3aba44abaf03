"""Pipes in the place of files."""

import os
import threading
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.system.files import read_bytes, read_unpacked
from regard.system.fingerprints import record_digests
from regard.system.pipes import cache_named_pipes


def make_unnamed_pipe(content: bytes) -> Path:
    """Return an unnamed pipe, like <(...) of a shell, with its content."""
    reads, writes = os.pipe()
    os.write(writes, content)
    os.close(writes)
    return Path(f"/dev/fd/{reads}")


def test_pipe_without_a_name_is_read_again_from_memory() -> None:
    path, other = make_unnamed_pipe(b"a\tb\n"), make_unnamed_pipe(b"c\td\n")
    with record_digests() as first:
        assert read_unpacked(path) == b"a\tb\n"
    with record_digests() as second:
        assert read_unpacked(path) == b"a\tb\n"
    assert first == second
    assert set(first) == {str(path)}
    assert read_unpacked(other) == b"c\td\n"


def test_pipe_with_a_name_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for content in (b"1" * 200_000, b"2"):  # more than the system keeps of a pipe
        writer = threading.Thread(target=path.write_bytes, args=(content,))
        writer.start()
        assert read_bytes(path) == content
        writer.join()


def test_pipe_with_a_name_is_read_once_in_cache_named_pipes(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for content in (b"first", b"second"):
        writer = threading.Thread(target=path.write_bytes, args=(content,))
        writer.start()
        with cache_named_pipes():
            assert [read_bytes(path), read_bytes(path)] == [content, content]
        writer.join()


def test_pipe_without_a_writer_warns_and_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.system.pipes._PATIENCE", 0.01)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Timer(0.3, path.write_bytes, args=(b"late",))
    writer.start()
    with pytest.warns(UserWarning, match=r"pipe: waiting for a program that writes to this pipe"):
        assert read_bytes(path) == b"late"
    writer.join()


def test_pipe_is_read_up_to_the_limit() -> None:
    assert read_bytes(make_unnamed_pipe(b"x" * 100), limit=100) == b"x" * 100
    with pytest.raises(UserError, match="the pipe holds more than the 100 bytes that are read"):
        read_bytes(make_unnamed_pipe(b"x" * 101), limit=100)
