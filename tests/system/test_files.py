"""Files that are read: missing, compressed, cut, too large."""

import bz2
import gzip
import hashlib
import lzma
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.system.files import (
    hash_file,
    list_files,
    open_unpacked,
    plain_name,
    read_blocks,
    read_bytes,
    read_json,
    suffix_of,
)

TEXT = b"one\ntwo\n" * 500_000
PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("read", [read_bytes, read_json])
def test_missing_file_and_folder_are_named(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(UserError, match=r"a\.tsv: no such file"):
        read(tmp_path / "a.tsv")
    with pytest.raises(UserError, match="is a folder, expected a file"):
        read(tmp_path)


@pytest.mark.parametrize("ending", PACK)
def test_compressed_file_is_read_whole_and_in_blocks_whatever_its_name(
    tmp_path: Path, ending: str
) -> None:
    for name in (f"a.tsv{ending}", "a.tsv"):
        path = tmp_path / name
        path.write_bytes(PACK[ending](TEXT[:80]) + PACK[ending](TEXT[80:]))
        assert read_bytes(path) == TEXT
        assert b"".join(read_blocks(path)) == TEXT
        assert max(map(len, read_blocks(path))) <= 1 << 20


@pytest.mark.parametrize("ending", PACK)
def test_cut_file_is_named(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.tsv{ending}"
    content = PACK[ending](os.urandom(1000))
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"a\.tsv.*: damaged"):
        read_bytes(path)


def test_plain_file_that_begins_like_a_name_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"BZh is not compressed")
    assert read_bytes(tmp_path / "a.txt") == b"BZh is not compressed"
    (tmp_path / "empty").touch()
    assert read_bytes(tmp_path / "empty") == b""


def test_pipe_is_read(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.write(writes, gzip.compress(b"text"))
    os.close(writes)
    try:
        with open_unpacked(Path(f"/dev/fd/{reads}")) as file:
            assert file.read() == b"text"
    finally:
        os.close(reads)


def test_pipe_instead_of_whole_content_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png: is a pipe or a device, expected a file"):
        read_bytes(tmp_path / "a.png")


def test_files_of_a_folder_are_found_once(tmp_path: Path) -> None:
    for name in ("b/c/1.PNG", "b/2.png", "other/3.png", "b/.hidden/4.png", "b/text.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    os.mkfifo(tmp_path / "b" / "5.png")
    (tmp_path / "b" / "6.png").symlink_to("nowhere")
    for name, target in {"up": ".", "same": "../b", "c/back": "..", "there": "../other"}.items():
        (tmp_path / "b" / name).symlink_to(target)
    found, notices = list_files(tmp_path / "b", (".png",))
    names = [path.relative_to(tmp_path).as_posix() for path in found]
    assert names == ["b/2.png", "b/c/1.PNG", "b/there/3.png"]
    assert notices == (f"{tmp_path}/b: skipped 3 other files; first: {tmp_path}/b/5.png.",)
    with pytest.raises(UserError, match=r"b: contains no file that can be read \(\.wav\)"):
        list_files(tmp_path / "b", (".wav",))


def test_content_above_the_limit_is_refused_while_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_MAX_FILE_MIB", "1")
    path = tmp_path / "zeros.gz"
    path.write_bytes(gzip.compress(bytes(3 << 20)))
    with pytest.raises(UserError, match=r"zeros\.gz: has more than 1,048,576 bytes \(REGARD_MAX"):
        read_bytes(path)
    assert sum(map(len, read_blocks(path))) == 3 << 20  # not kept in memory
    monkeypatch.setenv("REGARD_MAX_FILE_MIB", "many")
    with pytest.raises(UserError, match="REGARD_MAX_FILE_MIB must be a whole number of MiB"):
        read_bytes(path)


@dataclass
class Point:
    x: int


def test_json_is_read_as_a_dataclass(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"x": 3}')
    assert read_json(path, Point) == Point(3)
    assert read_json(path) == {"x": 3}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "Expecting property name"),
        ('{"x": "3"}', r"Expected `int`, got `str` - at `\$.x`"),
        ("{}", "missing required field `x`"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_damaged_json_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(UserError, match=rf"a\.json: damaged: .*{message}"):
        read_json(path, Point)


def test_names_without_compression() -> None:
    assert plain_name("data/A.TSV.gz") == "a.tsv"
    assert plain_name(Path("a.xz")) == "a"
    names = ("a.b.TSV.gz", ".tsv", "a", "a.d/b")
    assert [suffix_of(name) for name in names] == [".tsv", ".tsv", "", ""]


def test_hash_is_that_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    assert hash_file(tmp_path / "a") == hashlib.sha256(TEXT).hexdigest()
