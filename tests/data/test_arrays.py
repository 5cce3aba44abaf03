"""Arrays of npz files: as numpy wrote them, or a sentence that names file and array, before memory is taken."""

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
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head


def packed(content, name="row", method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr(f"{name}.npy", content)
    return out.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back_and_can_be_written_to(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)
    found = read_arrays(tmp_path / "a.npz", tuple(ARRAYS))
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
        assert found[name].flags.writeable


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no zip", "expected an npz, a zip of .npy files"),
        (packed(header("(3,)") + bytes(6), "other"), "expected an npz with row, but there are other"),
        (packed(header("(10000000000000,)")), "array row: says 10000000000000 of int16, 20,000,000,000,000 bytes"),
        (packed(header("(4294967296, 4294967296)")), "bytes, but holds 0"),
        (packed(header("(-1,)")), "has the shape"),
        (packed(header("(3,)") + bytes(7)), "6 bytes, but holds 7"),
        (packed(header("(1,)", "'|O'") + bytes(8)), "holds object; expected numbers or texts, and no pickle"),
        (packed(header("(1,)", "[('a', '<i2')]") + bytes(2)), "expected numbers or texts"),
        (packed(header("(1,)", "'|S0'")), "says 1 of"),
        (packed(header("__import__('os')")), "array row: damaged"),
        (packed(b""), "array row: damaged"),
        (packed(b"\x93NUMPY\x09\x00"), "has format"),
        (packed(header("(3,)") + bytes(6), method=zipfile.ZIP_BZIP2), "is packed by method 12"),
    ],
)
def test_what_a_file_says_is_checked(tmp_path, content, message):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(UserError, match=rf"a.npz.*{message}"):
        read_arrays(tmp_path / "a.npz", ("row",))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_array_that_is_there_twice_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for value in (b"\1\0", b"\2\0"):
            archive.writestr("row.npy", header("(1,)") + value)
    with pytest.raises(UserError, match="row is there twice"):
        read_arrays(tmp_path / "a.npz", ("row",))


@pytest.mark.parametrize("place", range(0, 500, 7))
def test_flipped_byte_is_refused_or_changes_nothing_that_is_read(tmp_path, place):
    np.savez(tmp_path / "a.npz", row=np.arange(100))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[place] ^= 0x55
    (tmp_path / "a.npz").write_bytes(bytes(content))
    try:
        found = read_arrays(tmp_path / "a.npz", ("row",))["row"]
    except UserError:
        return
    np.testing.assert_array_equal(found, np.arange(100))


def test_encrypted_array_is_refused(tmp_path):
    content = bytearray(packed(header("(3,)") + bytes(6)))
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.npz").write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"a.npz, array row: is encrypted"):
        read_arrays(tmp_path / "a.npz", ("row",))


def test_packed_zeros_are_not_unpacked_beyond_the_limit(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_MAX_FILE_MIB", "1")
    np.savez_compressed(tmp_path / "a.npz", row=np.zeros(200_000))
    assert (tmp_path / "a.npz").stat().st_size < 10_000
    with pytest.raises(UserError, match=r"a.npz: its arrays take 1,600,128 bytes unpacked, more than the 1,048,576"):
        read_arrays(tmp_path / "a.npz", ("row",))
