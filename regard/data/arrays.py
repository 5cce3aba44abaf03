"""Arrays of .npy and npz files (zips of .npy files); every stated size is checked before memory is
allocated."""

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
from regard.system.files import read_bytes, unpacked_limit

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_KINDS = "biufUS"
"""dtype kinds of booleans, numbers and strings; no objects, which are pickles."""
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read arrays by name.

    Raises:  UserError naming the file and the array that is missing, damaged, encrypted, pickled or
             of another size than its header states, or if all arrays together exceed
             `unpacked_limit`.
    """
    return parse_arrays(read_bytes(path), str(path), names)


def parse_arrays(content: bytes, path: str, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return arrays by name from the content of an npz file of this name. Raises UserError as
    `read_arrays`."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [_member(archive, name, names, path) for name in names]
            total = sum(member.file_size for member in members)
            limit = unpacked_limit(len(content))
            if total > limit:
                raise UserError(
                    f"{path}: its arrays take {total:,} bytes unpacked, more than the limit of "
                    f"{limit:,}."
                )
            return {
                member.filename.removesuffix(".npy"): _array(archive, member, path)
                for member in members
            }
    except UserError:
        raise
    except (
        zipfile.BadZipFile,
        ValueError,
        EOFError,
        OSError,
        NotImplementedError,
        OverflowError,
    ) as error:
        raise UserError(f"{path}: expected an npz file, a zip of .npy files ({error}).") from error


def read_array(path: Path) -> NDArray[Any]:
    """Read the array of a .npy file. Raises UserError as `read_arrays`."""
    try:
        return _parse(read_bytes(path), str(path))
    except UserError:
        raise
    except Exception as error:  # struct, and numpy's own parser of a damaged header
        raise UserError(
            f"{path}: expected a .npy file ({type(error).__name__}: {str(error)[:200]})."
        ) from error


def _member(
    archive: zipfile.ZipFile, name: str, names: Sequence[str], path: str
) -> zipfile.ZipInfo:
    matches = [member for member in archive.infolist() if member.filename == f"{name}.npy"]
    if len(matches) != 1:
        available = ", ".join(
            sorted({member.filename.removesuffix(".npy")[:40] for member in archive.infolist()})[
                :10
            ]
        )
        problem = f"found {available or 'none'}" if not matches else f"{name} occurs twice"
        raise UserError(
            f"{path}: expected an npz file with the arrays {', '.join(names)}, but {problem}."
        )
    (member,) = matches
    if member.flag_bits & 1:
        raise UserError(f"{path}, array {name}: is encrypted.")
    if member.compress_type not in _METHODS:
        raise UserError(
            f"{path}, array {name}: compression method must be none or deflate, got "
            f"{member.compress_type}."
        )
    return member


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: str) -> NDArray[Any]:
    where = f"{path}, array {member.filename.removesuffix('.npy')}"
    try:
        with archive.open(member) as file:
            content = file.read(member.file_size + 1)
        return _parse(content, where)
    except UserError:
        raise
    except Exception as error:  # zip, zlib, struct, and numpy's own parser of a damaged header
        raise UserError(
            f"{where}: damaged ({type(error).__name__}: {str(error)[:200]})."
        ) from error


def _parse(content: bytes, where: str) -> NDArray[Any]:
    stream = io.BytesIO(content)
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise UserError(
            f"{where}: format version must be one of {', '.join(map(str, _HEADERS))}, got "
            f"{version}."
        )
    shape, is_fortran, dtype = _HEADERS[version](stream)
    if dtype.kind not in _KINDS:
        raise UserError(f"{where}: expected numbers or strings, not pickled objects, got {dtype}.")
    if any(size < 0 for size in shape):
        raise UserError(f"{where}: sizes must be at least 0, got shape {shape}.")
    needed, available = math.prod(shape) * dtype.itemsize, len(content) - stream.tell()
    if needed != available or not dtype.itemsize:
        stated = f"{' x '.join(map(str, shape))} of {dtype}, {needed:,} bytes"
        raise UserError(f"{where}: its header states {stated}, but the file holds {available:,}.")
    flat = np.frombuffer(
        content, dtype, offset=stream.tell()
    ).copy()  # writable, as torch shares this memory
    return flat.reshape(shape, order="F" if is_fortran else "C")
