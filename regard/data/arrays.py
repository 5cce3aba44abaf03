"""Arrays of an npz file (a zip of .npy files): every size that it states is checked before anything is allocated."""

import io
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from regard.errors import UserError
from regard.files import file_limit, read_bytes

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_KINDS = "biufUS"
"""Truths, numbers, texts; no objects, which would be pickles."""
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays of these names.

    Raises:  UserError naming the file and the member that is missing, damaged, encrypted, of objects, or larger than
             what it says of itself or than `file_limit()`, all together.
    """
    content = read_bytes(path)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [_member(archive, name, names, path) for name in names]
            total = sum(member.file_size for member in members)
            if total > file_limit():
                raise UserError(
                    f"{path}: its arrays take {total:,} bytes unpacked, more than the {file_limit():,} that are read."
                )
            return {member.filename.removesuffix(".npy"): _array(archive, member, path) for member in members}
    except UserError:
        raise
    except (zipfile.BadZipFile, ValueError, EOFError, OSError, NotImplementedError, OverflowError) as error:
        raise UserError(f"{path}: expected an npz, a zip of .npy files ({error}).") from error


def _member(archive: zipfile.ZipFile, name: str, names: Sequence[str], path: Path) -> zipfile.ZipInfo:
    found = [member for member in archive.infolist() if member.filename == f"{name}.npy"]
    if len(found) != 1:
        there = ", ".join(sorted({member.filename.removesuffix(".npy")[:40] for member in archive.infolist()})[:10])
        how = f"there are {there or 'none'}" if not found else f"{name} is there twice"
        raise UserError(f"{path}: expected an npz with {', '.join(names)}, but {how}.")
    (member,) = found
    if member.flag_bits & 1:
        raise UserError(f"{path}, array {name}: is encrypted.")
    if member.compress_type not in _METHODS:
        raise UserError(f"{path}, array {name}: is packed by method {member.compress_type}; expected none or deflate.")
    return member


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    where = f"{path}, array {member.filename.removesuffix('.npy')}"
    try:
        with archive.open(member) as file:
            content = file.read(member.file_size + 1)
        return _parsed(content, where)
    except UserError:
        raise
    except Exception as error:  # zip, zlib, struct, and numpy's own parser of a damaged header
        raise UserError(f"{where}: damaged ({type(error).__name__}: {str(error)[:200]}).") from error


def _parsed(content: bytes, where: str) -> NDArray[Any]:
    stream = io.BytesIO(content)
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise UserError(f"{where}: has format {version}; expected one of {', '.join(map(str, _HEADERS))}.")
    shape, is_fortran, dtype = _HEADERS[version](stream)
    if dtype.kind not in _KINDS:
        raise UserError(f"{where}: holds {dtype}; expected numbers or texts, and no pickle.")
    if any(size < 0 for size in shape):
        raise UserError(f"{where}: has the shape {shape}.")
    needed, there = math.prod(shape) * dtype.itemsize, len(content) - stream.tell()
    if needed != there or not dtype.itemsize:
        said = f"{' x '.join(map(str, shape))} of {dtype}, {needed:,} bytes"
        raise UserError(f"{where}: says {said}, but holds {there:,}.")
    flat = np.frombuffer(content, dtype, offset=stream.tell()).copy()  # what torch shares must be writable
    return flat.reshape(shape, order="F" if is_fortran else "C")
