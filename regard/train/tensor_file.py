"""Tensors in files: safetensors with a checksum, written whole or not at all.

    8 bytes   length of the head
    head      JSON: {"__metadata__": {"checksum", "ties"}, NAME: {"dtype", "shape", "data_offsets"}, ...}
    data      the tensors' bytes, those of wide types first, then by name

The checksum is the CRC-32 of the entries (as compact JSON, keys in order) and of the data. Files are written here and
not by the safetensors library, which knows no checksum, orders its metadata at random, and leaves a file of a random
name behind if it is killed. They are read by it; those that it or another program wrote have no checksum to compare.

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

from regard.checksums import checksum_of
from regard.errors import UserError
from regard.files import check_content, check_file, written_whole

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
_HEAD, _CHECKSUM = "__metadata__", "checksum"
_MOST_HEAD = 100_000_000  # as the safetensors library reads
_BLOCK = 1 << 20
_START = 100


def write_tensors(path: Path, tensors: Mapping[str, Tensor], *, ties: Mapping[str, str] | None = None) -> list[int]:
    """Write CPU tensors to a file that appears under its name only when it is complete and on the disk.

    Returns its length in bytes and its CRC-32. Raises UserError naming it if the system cannot write.
    """
    entries: dict[str, Any] = {}
    parts, offset = [], 0
    # Wide types first: then each tensor's bytes lie where its type may lie in memory.
    for name, value in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        if value.dtype not in _DTYPES:
            raise UserError(f"{path}: {name} is of {value.dtype}, which cannot be written.")
        parts.append(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
        end = offset + parts[-1].nbytes
        entries[name] = {"dtype": _DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [offset, end]}
        offset = end
    checksum = checksum_of(entries)
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    metadata = {_CHECKSUM: f"{checksum:08x}"} | ({"ties": json.dumps(dict(ties))} if ties else {})
    head = json.dumps({_HEAD: metadata, **entries}, separators=(",", ":")).encode("utf-8")
    head += b" " * (-len(head) % 8)
    total = 0
    with written_whole(path) as file:
        for part in (len(head).to_bytes(8, "little"), head, *parts):
            file.write(part)
            total = zlib.crc32(part, total)
    return [8 + len(head) + offset, total]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, tied ones once, on the CPU.

    Raises:  UserError naming the file if it is missing, no regular file, damaged, or no safetensors file.
    """
    if not path.exists():
        raise UserError(f"{path} is missing.")
    check_file(path)
    try:
        _check(path)
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    except UserError:
        raise
    except (SafetensorError, ValueError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise UserError(f"{path} is damaged or no safetensors file: {str(error) or type(error).__name__}.") from error


def _check(path: Path) -> None:
    """Raises ValueError if the file has a checksum, and it is of something else."""
    size = path.stat().st_size
    with path.open("rb") as file:
        check_content(path, file.read(_START))
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, _MOST_HEAD):
            raise ValueError(f"its head claims {length:,} bytes, the file has {size:,}")
        entries = json.loads(file.read(length))
        expected = entries.pop(_HEAD, {}).get(_CHECKSUM)
        if expected is None:
            return
        found = checksum_of(entries)
        while block := file.read(_BLOCK):
            found = zlib.crc32(block, found)
    if expected != f"{found:08x}":
        raise ValueError("its checksum is not that of its content")
