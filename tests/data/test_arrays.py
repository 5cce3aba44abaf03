"""Arrays of npz files are read as numpy wrote them; errors name file and array before memory is
allocated."""

import io
import zipfile

import numpy as np
import pytest

from regard.data.arrays import read_arrays
from regard.errors import UserError

ARRAYS = {
    "row": np.arange(5, dtype=np.int16),
    "table": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "texts": np.array(["a", "\u00e4\u00f6"]),
    "number": np.int64(7),
    "swapped": np.arange(3, dtype=">i4"),
    "none": np.zeros((0, 4)),
}


def header(shape, descr="'<i2'"):
    head = (
        f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode()
        + b"\n"
    )
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head


def pack(content, name="row", method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr(f"{name}.npy", content)
    return out.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back_and_can_be_written_to(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)
    arrays = read_arrays(tmp_path / "a.npz", tuple(ARRAYS))
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype
        assert arrays[name].flags.writeable


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no zip", "expected an npz file, a zip of .npy files"),
        (
            pack(header("(3,)") + bytes(6), "other"),
            "expected an npz file with the arrays row, but found other",
        ),
        (
            pack(header("(10000000000000,)")),
            "array row: its header states 10000000000000 of int16, 20,000,000,000,000 bytes",
        ),
        (pack(header("(4294967296, 4294967296)")), "bytes, but the file holds 0"),
        (pack(header("(-1,)")), r"sizes must be at least 0, got shape \(-1,\)"),
        (pack(header("(3,)") + bytes(7)), "6 bytes, but the file holds 7"),
        (
            pack(header("(1,)", "'|O'") + bytes(8)),
            "expected numbers or strings, not pickled objects, got object",
        ),
        (pack(header("(1,)", "[('a', '<i2')]") + bytes(2)), "expected numbers or strings"),
        (pack(header("(1,)", "'|S0'")), "its header states 1 of"),
        (pack(header("__import__('os')")), "array row: damaged"),
        (pack(b""), "array row: damaged"),
        (
            pack(b"\x93NUMPY\x09\x00"),
            r"format version must be one of \(1, 0\), \(2, 0\), got \(9, 0\)",
        ),
        (
            pack(header("(3,)") + bytes(6), method=zipfile.ZIP_BZIP2),
            "compression method must be none or deflate, got 12",
        ),
    ],
)
def test_header_and_content_are_checked(tmp_path, content, message):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(UserError, match=rf"a.npz.*{message}"):
        read_arrays(tmp_path / "a.npz", ("row",))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_array_that_occurs_twice_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for value in (b"\1\0", b"\2\0"):
            archive.writestr("row.npy", header("(1,)") + value)
    with pytest.raises(UserError, match="row occurs twice"):
        read_arrays(tmp_path / "a.npz", ("row",))


@pytest.mark.parametrize("position", range(0, 500, 7))
def test_flipped_byte_is_refused_or_leaves_the_array_unchanged(tmp_path, position):
    np.savez(tmp_path / "a.npz", row=np.arange(100))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[position] ^= 0x55
    (tmp_path / "a.npz").write_bytes(bytes(content))
    try:
        row = read_arrays(tmp_path / "a.npz", ("row",))["row"]
    except UserError:
        return
    np.testing.assert_array_equal(row, np.arange(100))


def test_encrypted_array_is_refused(tmp_path):
    content = bytearray(pack(header("(3,)") + bytes(6)))
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.npz").write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"a.npz, array row: is encrypted"):
        read_arrays(tmp_path / "a.npz", ("row",))


def test_compressed_zeros_beyond_the_limit_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_MAX_FILE_MIB", "1")
    np.savez_compressed(tmp_path / "a.npz", row=np.zeros(200_000))
    assert (tmp_path / "a.npz").stat().st_size < 10_000
    with pytest.raises(
        UserError,
        match=r"a.npz: its arrays take 1,600,128 bytes unpacked, more than the limit of 1,048,576",
    ):
        read_arrays(tmp_path / "a.npz", ("row",))
