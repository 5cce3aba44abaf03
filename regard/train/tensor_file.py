"""Tensor files: safetensors with a checksum, written atomically.

    8 bytes   length of the header
    header    JSON: {"__metadata__": {"checksum", "ties"}, NAME: {"dtype", "shape", "data_offsets"}, ...}
    data      bytes of the tensors, wide types first, then by name

The checksum is the CRC-32 of the entries (as compact JSON, keys in order) and of the data. Files are not written with
the safetensors library, which has no checksums, writes its metadata in random order, and leaves a file with a random
name behind if it is killed. They are read with it; files written by other programs have no checksum to compare.

Source: the format at https://github.com/huggingface/safetensors
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.checksums import compute_checksum
from regard.errors import UserError
from regard.files import check_content, check_file, open_atomically

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_METADATA, _CHECKSUM = "__metadata__", "checksum"
_MAX_HEADER = 100_000_000  # limit of the safetensors library
_BLOCK = 1 << 20
_START = 100


def write_tensors(path: Path, tensors: Mapping[str, Tensor], *, ties: Mapping[str, str] | None = None) -> list[int]:
    """Write CPU tensors to a file, atomically and flushed to disk. Return its length in bytes and its CRC-32.

    Raises: UserError naming the file if it cannot be written.
    """
    entries: dict[str, Any] = {}
    parts, offset = [], 0
    # Wide types first, so that the data of each tensor is aligned.
    for name, value in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        if value.dtype not in _DTYPES:
            raise UserError(f"{path}: {name} has dtype {value.dtype}, which cannot be written.")
        parts.append(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
        end = offset + parts[-1].nbytes
        entries[name] = {"dtype": _DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [offset, end]}
        offset = end
    checksum = compute_checksum(entries)
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    metadata = {_CHECKSUM: f"{checksum:08x}"} | ({"ties": json.dumps(dict(ties))} if ties else {})
    header = json.dumps({_METADATA: metadata, **entries}, separators=(",", ":")).encode("utf-8")
    header += b" " * (-len(header) % 8)
    total = 0
    with open_atomically(path) as file:
        for part in (len(header).to_bytes(8, "little"), header, *parts):
            file.write(part)
            total = zlib.crc32(part, total)
    return [8 + len(header) + offset, total]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, tied ones once, on the CPU.

    Raises:  UserError naming the file if it is missing, not a regular file, damaged, or not a safetensors file.
    """
    if not path.exists():
        raise UserError(f"{path} is missing.")
    check_file(path)
    try:
        _check(path)
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    except UserError:
        raise
    except (SafetensorError, ValueError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise UserError(
            f"{path} is damaged or not a safetensors file: {str(error) or type(error).__name__}."
        ) from error


def _check(path: Path) -> None:
    """Raise ValueError if the file has a checksum that does not match its content."""
    size = path.stat().st_size
    with path.open("rb") as file:
        check_content(path, file.read(_START))
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, _MAX_HEADER):
            raise ValueError(f"its header claims {length:,} bytes, but the file has {size:,}")
        entries = json.loads(file.read(length))
        expected = entries.pop(_METADATA, {}).get(_CHECKSUM)
        if expected is None:
            return
        checksum = compute_checksum(entries)
        while block := file.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
    if expected != f"{checksum:08x}":
        raise ValueError("its checksum is not that of its content")
