"""Raw lines of plain and compressed files, and messages about unreadable files."""

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.config import BoxesConfig, CaptionsConfig, ImagesConfig
from regard.data.images.boxes import read_boxes
from regard.data.images.captions import read_captions
from regard.data.images.dataset import read_images
from regard.data.sound.recordings import read_recordings
from regard.data.text.lines import (
    describe_decode_error,
    read_filled_lines,
    read_lines,
    read_objects,
    split_lines,
)
from regard.data.text.pairs import read_pairs
from regard.data.text.rows import read_table
from regard.errors import UserError, did_you_mean

LINES = st.lists(st.binary(min_size=1).filter(lambda line: b"\n" not in line), min_size=1)
CONTENT = b"".join(b"line %d is here\n" % number for number in range(5000))


def write_file(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@given(LINES, st.booleans())
def test_lines_come_back_from_plain_and_gzip(tmp_path_factory, lines, has_end):
    folder = tmp_path_factory.mktemp("lines")
    content = b"=" + b"\n".join(lines) + (b"\n" if has_end else b"")
    expected = [b"=" + lines[0], *lines[1:]]
    assert read_lines(write_file(folder, "a.txt", content)) == expected
    # Gzip is recognized by content, not by name.
    for name in ("a.txt.gz", "b"):
        assert read_lines(write_file(folder, name, gzip.compress(content))) == expected


def test_lines_end_at_a_line_feed_only(tmp_path):
    content = "a\u2028b\x0bc\x85d\re\r\nf".encode()
    assert read_lines(write_file(tmp_path, "a", content)) == [
        "a\u2028b\x0bc\x85d\re\r".encode(),
        b"f",
    ]


def test_blank_lines_are_lines_and_the_last_end_is_not(tmp_path):
    assert read_lines(write_file(tmp_path, "a", b"\n\nx\n\n")) == [b"", b"", b"x", b""]


def test_byte_order_mark_is_dropped(tmp_path):
    assert read_lines(write_file(tmp_path, "a", "\ufeffx\n\ufeffy".encode())) == [
        b"x",
        "\ufeffy".encode(),
    ]


def test_gzip_of_several_parts_is_one_file(tmp_path):
    assert read_lines(
        write_file(tmp_path, "a.gz", gzip.compress(b"x\n") + gzip.compress(b"y\n"))
    ) == [
        b"x",
        b"y",
    ]


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_empty_file_is_refused(tmp_path, name):
    with pytest.raises(UserError, match=r"a\.tsv.*: the file is empty"):
        read_lines(write_file(tmp_path, name, b""))
    with pytest.raises(UserError, match="the file is empty"):
        read_lines(write_file(tmp_path, name, gzip.compress(b"")))


def test_missing_file_names_near_files(tmp_path):
    write_file(tmp_path, "train.tsv", b"x")
    with pytest.raises(UserError, match=r"tran\.tsv: no such file\. Did you mean 'train\.tsv'\?"):
        read_lines(tmp_path / "tran.tsv")
    with pytest.raises(UserError, match=r"zzz: no such file\.$"):
        read_lines(tmp_path / "zzz")


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(UserError, match=r"The folder .*nowhere does not exist"):
        read_lines(tmp_path / "nowhere" / "a.tsv")
    path = write_file(tmp_path, "file", b"x")
    with pytest.raises(UserError, match="no such file"):
        read_lines(path / "a.tsv")


def test_folder_is_not_a_file(tmp_path):
    with pytest.raises(UserError, match="is a folder, expected a file"):
        read_lines(tmp_path)


def test_file_that_cannot_be_opened_is_reported(tmp_path):
    path = tmp_path / "loop"
    os.symlink(path, path)
    with pytest.raises(UserError, match=r"loop: cannot be read: .*symbolic links"):
        read_lines(path)
    with pytest.raises(UserError, match=r"cannot be read: .*null byte"):
        read_lines(tmp_path / "a\0b")


def test_name_with_gz_without_gzip_is_refused(tmp_path):
    with pytest.raises(
        UserError,
        match=r"a\.gz: not a gzip file, although its name ends in \.gz \(it starts with b'he'\)",
    ):
        read_lines(write_file(tmp_path, "a.gz", b"hello\n"))


def test_truncated_gzip_is_refused_with_its_length(tmp_path):
    packed = gzip.compress(CONTENT)
    with pytest.raises(
        UserError,
        match=rf"a\.gz: the gzip file is cut off after {len(packed) // 2} bytes.* line [1-9]",
    ):
        read_lines(write_file(tmp_path, "a.gz", packed[: len(packed) // 2]))


@pytest.mark.parametrize("position", [3, 2000, -3])
def test_gzip_that_is_damaged_is_refused(tmp_path, position):
    packed = bytearray(gzip.compress(CONTENT))
    packed[position] ^= 0xFF
    with pytest.raises(UserError, match=r"a\.gz: the gzip file is (damaged|cut off)"):
        read_lines(write_file(tmp_path, "a.gz", bytes(packed)))


def test_did_you_mean_is_empty_without_a_similar_name():
    assert did_you_mean("sorce", ["source", "target"]) == " Did you mean 'source'?"
    assert did_you_mean("x", ["source"]) == ""


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_refused(tmp_path, encoding):
    with pytest.raises(
        UserError, match=r"a.tsv: looks like UTF-16, expected UTF-8: save it as UTF-8"
    ):
        read_lines(write_file(tmp_path, "a.tsv", "one\teins\n\u4e8c\tzwei\n".encode(encoding)))
    assert read_lines(write_file(tmp_path, "b.tsv", b"\0a null\0\n")) == [b"\0a null\0"]


def test_byte_of_another_encoding_is_shown_as_its_character():
    with pytest.raises(UnicodeDecodeError) as error:
        b"gr\xfcn".decode()
    with pytest.raises(UnicodeDecodeError) as other:
        "x".encode("utf-16").decode()
    assert (
        describe_decode_error(other.value)
        == "looks like UTF-16, expected UTF-8: save the file as UTF-8"
    )
    assert describe_decode_error(error.value).endswith(
        "in Windows-1252 it is '\u00fc': save the file as UTF-8"
    )


def test_filled_lines_keep_their_numbers(tmp_path):
    assert list(read_filled_lines(write_file(tmp_path, "a", b"\na\n \t\r\nb\n\n"))) == [
        (2, b"a"),
        (4, b"b"),
    ]


def test_lines_that_do_not_fit_into_memory_are_refused(monkeypatch):
    content = b"a\n" * (1 << 23) + b"b"
    assert len(split_lines(content, "a.txt")) == (1 << 23) + 1
    monkeypatch.setenv("REGARD_MAX_MEMORY_MIB", "100")
    with pytest.raises(
        UserError,
        match=r"a.txt: its 8,388,608 lines take 419,430,401 bytes of memory, more than the",
    ):
        split_lines(content, "a.txt")


@pytest.mark.parametrize("indent", [None, 2])
def test_columns_of_pandas_are_answered_with_the_option_that_writes_records(tmp_path, indent):
    path = tmp_path / "a.json"
    path.write_text(
        json.dumps({"text": {"0": "one", "1": "two"}, "label": {"0": 1, "1": 0}}, indent=indent)
    )
    with pytest.raises(
        UserError, match=r'a.json: is one JSON object, expected an array .*orient="records"'
    ):
        read_objects(path)
    path.write_text('{"text": {"0": 1, "old": 2}}\n{"text": {"0": 1, "old": 2}}\n')
    assert len(list(read_objects(path))) == 2


@pytest.mark.parametrize("suffix", ["parquet", "xlsx", "las", "laz", "xyz", "npy", "npz"])
def test_formats_that_are_not_read_are_answered_with_the_way_to_convert(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b"PK")
    for read in (
        lambda: read_pairs(path),
        lambda: read_images(path, ImagesConfig()),
        lambda: read_boxes(path, None, BoxesConfig()),
        lambda: read_table(path, ("file",)),
    ):
        with pytest.raises(
            UserError,
            match=rf"\.{suffix} is not read here, expected .*\.csv.*; .*\('a\.{suffix}'\)",
        ):
            read()


def test_a_folder_is_answered_with_the_tables_in_it(tmp_path):
    folder = tmp_path / "data.csv"
    folder.mkdir()
    for name in ("train.json", "val.csv.gz", ".hidden.csv", "a.png"):
        (folder / name).write_bytes(b"")
    for read, expected in (
        (
            lambda: read_images(folder, ImagesConfig()),
            "expected a folder for each class in it, got 1 image and no",
        ),
        (
            lambda: read_boxes(folder, None, BoxesConfig()),
            r"is a folder, expected boxes in .* \(--data.images names",
        ),
        (
            lambda: read_captions(folder, None, CaptionsConfig()),
            "is a folder, expected captions in a file",
        ),
        (lambda: read_table(folder, ("file",)), "is a folder, expected a table in .csv"),
        (lambda: read_recordings(folder, 1), "is a folder, expected a file"),
        (lambda: read_lines(folder), "is a folder, expected a file"),
    ):
        with pytest.raises(
            UserError, match=rf"{expected}.*\. It has {folder}/train.json, {folder}/val.csv.gz\.$"
        ):
            read()
