import bz2
import gzip
import lzma
import os
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.system.compression import plain_name
from regard.system.files import (
    BlockReader,
    DifferentValues,
    check_readable,
    parse_data,
    read_bytes,
    read_json,
    read_unpacked,
    unpacked_limit,
)
from regard.system.fingerprints import record_digests
from regard.system.writing import write_atomically
from regard.training.tensors import read_tensors


def test_pipe_in_the_place_of_a_file_of_a_run_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"pipe: is a named pipe, expected a regular file"):
        read_json(tmp_path / "pipe")


def test_closed_pipe_is_reported() -> None:
    with pytest.raises(
        UserError, match=r"/dev/fd/987: no such file. The pipe of an earlier command is gone"
    ):
        read_bytes(Path("/dev/fd/987"))


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz"])
def test_compressed_files_are_detected_by_content(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[ending]
    content = bytes(range(256)) * 3_000
    for name, packed in (
        (f"a.{ending}", pack(content)),
        ("b", pack(content[:7]) + pack(content[7:])),
        ("c", content),
    ):
        (tmp_path / name).write_bytes(packed)
        assert read_unpacked(tmp_path / name) == content
    for damaged, problem in (
        (pack(content)[:-4], "cut off"),
        (pack(content)[:30] + b"x" * 30, "damaged|cut off"),
    ):
        (tmp_path / "d").write_bytes(damaged)
        with pytest.raises(UserError, match=rf"d: the \w+ file is ({problem})"):
            read_unpacked(tmp_path / "d")
    (tmp_path / f"d.{ending}").write_bytes(b"text")
    with pytest.raises(UserError, match=rf"although its name ends in .{ending}"):
        read_unpacked(tmp_path / f"d.{ending}")
    (tmp_path / "bomb").write_bytes(pack(bytes(5 << 20)))
    monkeypatch.setenv("REGARD_MAX_FILE_MIB", "4")
    with pytest.raises(UserError, match="unpack to more than the 4,194,304"):
        read_unpacked(tmp_path / "bomb")


def test_unsupported_compression_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    with pytest.raises(UserError, match=r"a.zst: is compressed by zstd: decompress it first"):
        read_unpacked(tmp_path / "a.zst")


def test_text_that_begins_like_bzip2_is_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"BZh9 is a name\n")
    assert read_unpacked(tmp_path / "a") == b"BZh9 is a name\n"


@pytest.mark.parametrize("name", ["a.tsv", "A.TSV.gz", "folder.gz/a.tsv.BZ2", "a.tsv.xz"])
def test_plain_name_has_no_compression_suffix(name: str) -> None:
    assert plain_name(name) == "a.tsv"


def test_device_behind_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zeros").symlink_to("/dev/zero")
    with pytest.raises(UserError, match=r"zeros: is a device or socket"):
        read_json(tmp_path / "zeros")


def test_file_over_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate((1 << 20) + 1)
    monkeypatch.setenv("REGARD_MAX_FILE_MIB", "1")
    with pytest.raises(UserError, match=r"1,048,577 bytes, more than the 1,048,576"):
        read_bytes(tmp_path / "large")
    monkeypatch.setenv("REGARD_MAX_FILE_MIB", "2")
    assert len(read_bytes(tmp_path / "large")) == (1 << 20) + 1


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "9" * 30])
def test_limit_that_is_not_a_number_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("REGARD_MAX_FILE_MIB", value)
    (tmp_path / "small").write_bytes(b"")
    with pytest.raises(UserError, match="REGARD_MAX_FILE_MIB must be a whole number"):
        read_bytes(tmp_path / "small")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' is given twice"),
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"1" * 5000, "not valid JSON"),
        (b"[" + b"[]," * 10_000_000 + b"0]", "more than 10,000,000 lists and objects"),
    ],
)
def test_json_that_is_damaged_names_the_file(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(UserError, match=rf"run.json: damaged: .*{problem}"):
        read_json(tmp_path / "run.json")


def test_data_may_give_a_key_twice_and_values_that_differ_are_none() -> None:
    content = parse_data(
        '{"a": 1, "a": 1, "b": 1, "b": true, "c": [{"d": 2, "d": 3, "d": 4}]}', origin="x.json"
    )
    assert content["a"] == 1
    assert isinstance(content["b"], DifferentValues)
    assert repr(content["c"]) == "[{'d': a key given twice, as 2 and 3}]"


def test_text_that_cannot_be_written_leaves_the_file_and_nothing_beside_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "before")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "a", "\udc80")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "before"


def test_unpacking_is_counted_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = gzip.compress(bytes(1 << 24))
    (tmp_path / "bomb.gz").write_bytes(part * 200)  # 3.2 GB of zeros
    (tmp_path / "good.gz").write_bytes(
        part * 8
    )  # a thousand times its size, as lines that are all alike
    assert len(read_unpacked(tmp_path / "good.gz")) == 1 << 27
    monkeypatch.setenv("REGARD_MAX_FILE_MIB", "31")
    for name in ("bomb.gz", "good.gz"):
        with pytest.raises(
            UserError,
            match=rf"{name}: its first [\d,]+ bytes of gzip unpack to more than the 32,505,856 ",
        ):
            read_unpacked(tmp_path / name)


def test_memory_limits_a_file_whose_size_is_as_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.system.files._DEFAULT_MIB", 1)
    monkeypatch.setattr("regard.system.files._MOST_RATIO", 2)
    (tmp_path / "large").write_bytes(bytes((2 << 20) + 1))
    (tmp_path / "large.gz").write_bytes(gzip.compress(bytes(2 << 20)))
    assert len(read_bytes(tmp_path / "large")) == (2 << 20) + 1
    with pytest.raises(UserError, match="more than the 1,048,576 that are read"):
        read_unpacked(tmp_path / "large.gz")
    monkeypatch.setenv("REGARD_MAX_MEMORY_MIB", "2")
    with pytest.raises(
        UserError, match="more than the 2,097,152 that are read, since no more memory is available"
    ):
        read_bytes(tmp_path / "large")


def test_readers_report_what_they_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    with record_digests() as first:
        read_bytes(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"2")
    with record_digests() as second:
        read_bytes(tmp_path / "a")
    assert list(first) == list(second) == [str(tmp_path / "a")]
    assert first != second


def test_write_atomically_replaces_no_file_unasked(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomically(path, b"one", overwrite=False)
    with pytest.raises(FileExistsError) as error:
        write_atomically(path, b"two", overwrite=False)
    assert error.value.filename == str(path)
    assert path.read_bytes() == b"one"
    write_atomically(path, "three")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.bin", "three")]


def test_write_atomically_leaves_nothing_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match=r"a.txt: cannot be written: No space left on device"):
        write_atomically(tmp_path / "a.txt", "text")
    assert list(tmp_path.iterdir()) == []


def test_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n"
    )
    with pytest.raises(UserError, match=r"a.tsv: is a pointer of git-lfs .* `git lfs pull`"):
        read_unpacked(tmp_path / "a.tsv")
    with pytest.raises(UserError, match=r"a.tsv: is a pointer of git-lfs"):
        read_tensors(tmp_path / "a.tsv")


def test_unpacked_content_is_limited_by_its_ratio_and_by_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("regard.system.files.available_memory", lambda: 40 << 30)
    gib = 1 << 30
    assert unpacked_limit(1000) == gib  # a bomb
    assert unpacked_limit(100 << 20) == 100 * (100 << 20)
    assert unpacked_limit(2 * gib) == unpacked_limit(None) == 20 * gib
    monkeypatch.setattr("regard.system.files.available_memory", lambda: None)
    assert unpacked_limit(2 * gib) == unpacked_limit(None) == gib
    monkeypatch.setenv("REGARD_MAX_FILE_MIB", "3")
    assert unpacked_limit(2 * gib) == unpacked_limit(None) == 3 << 20


def test_zeros_after_a_compressed_stream_are_padding(tmp_path):
    one, two = gzip.compress(b"one\n"), gzip.compress(b"two\n")
    (tmp_path / "a.gz").write_bytes(one + bytes(700) + two + bytes(70_000))
    assert read_unpacked(tmp_path / "a.gz") == b"one\ntwo\n"
    assert b"".join(BlockReader(tmp_path / "a.gz").blocks()) == b"one\ntwo\n"


def test_dangling_link_is_named(tmp_path):
    (tmp_path / "dead.png").symlink_to("gone.png")
    with pytest.raises(
        UserError, match=r"dead.png: is a link to a file that does not exist: gone.png"
    ):
        check_readable(tmp_path / "dead.png")
