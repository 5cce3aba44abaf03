"""Recordings on disk: a folder of safetensors files with an index in JSON.

    RECORDING/index.json                 format, version, reads, calls, kernels, masks, shapes
    RECORDING/0003-00000012.safetensors  "weights" of call 12 of read 3 of the index, rows first,
    keys last

A file is written tile by tile: the header of a safetensors file is written first, with the offsets
of the tensor, then the tiles. On reading, a file is mapped into memory, and its pages are loaded on
access.

A recording is written under another name, its index last, and renamed when complete; if the process
is killed, there is nothing under the final name. Files are not synchronized to disk, so a power
failure may damage them.
"""

import itertools
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from regard.compat.torch import unwrap
from regard.errors import UserError
from regard.layers.read import Role
from regard.look.tiles import Part, Tile
from regard.settings.from_json import parse_dataclass
from regard.system.files import check_file, parse_json, read_json

DTYPES = {torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}
"""Dtypes of recorded weights, with their names in safetensors."""

_FORMAT, _VERSION = "regard recording", 3
_ALIGNMENT = 8
"""Alignment of tensors in bytes, so that they can be mapped into memory."""
_MOST, _MOST_CALLS, _MOST_HEADER = 10_000_000, 100_000_000, 1 << 20
"""Limits of a recording that is opened: size of an axis of a read, calls of a read, bytes of a
header."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """Metadata of one call of a read."""

    number: int
    """Number of earlier calls of this read, recorded or not."""
    segment: int = 0
    """Number of the segment of the trace that the call belongs to (regard.trace)."""
    step: int | None = None
    """Number of the step of a search in that segment; None: the encoder pass, or no search."""
    sizes: tuple[int, ...]
    """Shape (batch, [head,] query, key) of the weights; only a part of them may be recorded."""
    kernel: str
    """Kernel that computed the output of the read."""
    mask: str | None
    """repr of the mask of the read and its memory; None: every query may attend to every key."""
    bias: str | None
    autocast: str | None
    """dtype of autocast, for the model and for these weights; None without autocast."""
    first_key: int = 0
    """Position of the first key: the number of earlier ones that a sliding memory discarded."""


@dataclass(kw_only=True)
class ReadRecord:
    """Calls of one read."""

    role: Role | None = None
    """Role of the read in its model; None: unknown."""
    num_calls: int = 0
    """Number of calls, recorded or not."""
    calls: list[Call]
    """Recorded calls, in order."""
    shapes: list[tuple[int, ...]]
    """Shape of the recorded weights of each call."""


class Folder:
    """Folder of a recording, for writing or reading weights.

    Raises: ValueError if a new folder exists already, or its parent does not exist.
    """

    def __init__(self, path: Path, *, dtype: torch.dtype, is_new: bool):
        self.path = path
        self.dtype = dtype
        self._name = path
        if not is_new:
            return
        if path.exists() or path.is_symlink():
            raise ValueError(
                f"to must be a new folder, but {path} exists: recordings are not overwritten"
            )
        if not path.parent.is_dir():
            raise ValueError(f"to must be in an existing folder, but {path.parent} does not exist")
        self.path = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            self.path.mkdir()
        except FileExistsError:
            raise ValueError(
                f"another recording is being written to {path}: {self.path} exists"
            ) from None

    def write(self, read: int, call: Call, shape: tuple[int, ...], tiles: Iterable[Tile]) -> None:
        """Write the weights of a call tile by tile; if that fails, the file is removed."""
        file = self._file(read, call)
        facts = {name: json.dumps(value) for name, value in asdict(call).items()}
        try:
            with file.open("xb") as out:
                _stream(out, shape, self.dtype, tiles, facts)
        except BaseException:
            file.unlink(missing_ok=True)
            raise

    def finish(self, reads: Mapping[str, ReadRecord], part: Part) -> None:
        """Write the index, and rename the folder to its final name."""
        index = {
            "format": _FORMAT,
            "version": _VERSION,
            "dtype": DTYPES[self.dtype],
            **asdict(part),
        }
        index |= {
            "reads": [{"name": name, **asdict(read_record)} for name, read_record in reads.items()]
        }
        (self.path / "index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")
        self.path.rename(self._name)
        self.path = self._name

    def discard(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def weights(self, read: int, call: Call, shape: tuple[int, ...]) -> Tensor:
        """Return the weights of a call, mapped into memory."""
        return _map_weights(self._file(read, call), shape, self.dtype)

    def check(self, read: int, call: Call, shape: tuple[int, ...]) -> None:
        """Raise UserError if the file of a call is missing or does not hold weights of this
        shape."""
        _header(self._file(read, call), shape, self.dtype)

    def _file(self, read: int, call: Call) -> Path:
        return self.path / f"{read:04d}-{call.number:08d}.safetensors"


def load(path: Path) -> tuple[Folder, dict[str, ReadRecord], Part]:
    """Open a folder written by `Folder.finish`, and check that every file exists and has the right
    size.

    Raises: UserError if the folder is not a complete and valid recording.
    """
    file = path / "index.json"
    index = _index(path)
    try:
        recording = parse_dataclass(_RecordingIndex, index, "index")
        dtype_name = recording.dtype
        if dtype_name not in DTYPES.values():
            raise ValueError(
                f"index.dtype must be one of {', '.join(DTYPES.values())}, got {dtype_name[:60]!r}"
            )
        part = Part(rows=recording.rows, heads=recording.heads, queries=recording.queries)
        reads = {read.name: _check_read(read, part) for read in recording.reads}
        if len(reads) < len(recording.reads):
            raise ValueError("index.reads must not contain a name twice")
    except (TypeError, ValueError) as error:
        raise UserError(f"{file} is damaged: {error}") from error
    folder = Folder(
        path,
        dtype=next(dtype for dtype, name in DTYPES.items() if name == dtype_name),
        is_new=False,
    )
    for number, read_record in enumerate(reads.values()):
        for call, shape in zip(read_record.calls, read_record.shapes, strict=True):
            folder.check(number, call, shape)
    return folder, reads, part


def numbers_of(weights: Tensor, dtype: torch.dtype) -> np.ndarray:
    """Return the values as an array: on the CPU, detached, and unwrapped from the tensors of
    torch.func.

    Inside torch.func transforms every torch operation, including numpy(), wraps its result, so
    DLPack is used.
    """
    weights = weights.detach().to("cpu", dtype).contiguous()
    weights = unwrap(weights)
    return np.from_dlpack(weights)


def _stream(
    out: BinaryIO,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    tiles: Iterable[Tile],
    facts: dict[str, str],
) -> None:
    size = math.prod(shape) * dtype.itemsize
    tensor = {"dtype": DTYPES[dtype], "shape": shape, "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": facts, "weights": tensor}).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    out.write(len(header).to_bytes(8, "little") + header)
    start = out.tell()
    out.truncate(start + size)
    num_written = 0
    for position, weights in tiles:
        _write_tile(out, start, shape, position, numbers_of(weights, dtype))
        num_written += weights.numel()
    assert num_written == math.prod(shape), "tiles must cover the recorded weights"


def _write_tile(
    out: BinaryIO,
    start: int,
    shape: tuple[int, ...],
    position: tuple[slice, ...],
    numbers: np.ndarray,
) -> None:
    """Write a tile at its position: one contiguous block for each index of the axes before the last
    split one."""
    axis = len(shape) - 1
    while axis > 0 and position[axis] == slice(0, shape[axis]):
        axis -= 1
    strides = [math.prod(shape[after + 1 :]) for after in range(len(shape))]
    leading = list(
        itertools.product(*(range(block.start, block.stop) for block in position[:axis]))
    )
    for index, block in zip(leading, numbers.reshape(len(leading), -1), strict=True):
        offset = sum(
            i * stride for i, stride in zip((*index, position[axis].start), strides, strict=False)
        )
        out.seek(start + offset * numbers.itemsize)
        out.write(block.data)


def _map_weights(file: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    start, stop = _header(file, shape, dtype)
    try:
        # A private mapping: writing to the tensor does not change the file.
        numbers = torch.from_file(str(file), shared=False, size=stop // dtype.itemsize, dtype=dtype)
    except RuntimeError as error:
        raise UserError(
            f"{file} of {stop:,} bytes cannot be mapped into memory: {error}. To read parts of it, "
            f"use "
            "safetensors.safe_open(file).get_slice('weights')"
        ) from error
    return numbers[start // dtype.itemsize :].view(shape)


def _header(file: Path, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, int]:
    """Check the header of a file, and return the offsets of its weights. Raises UserError for
    another shape or size."""
    expected = math.prod(shape) * dtype.itemsize
    if not file.exists():
        raise UserError(f"{file} is missing: the recording is incomplete")
    size = check_file(file).st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        got = size - 8 - length
        if got != expected or length > _MOST_HEADER:
            raise UserError(
                f"{file} is damaged: it must have {expected:,} bytes of weights, got "
                f"{max(0, got):,}"
            )
        header = parse_json(opened.read(length), origin=str(file))
    tensor = header.get("weights") if isinstance(header, dict) else None
    stated = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [0, expected]}
    if tensor != stated or length % _ALIGNMENT:
        raise UserError(
            f"{file} does not belong to this recording: its header must be {stated}, got {tensor}"
        )
    return 8 + length, 8 + length + expected


def _index(path: Path) -> dict[str, Any]:
    file = path / "index.json"
    if not path.is_dir():
        raise UserError(
            f"{path} is not a recording: it "
            f"{'is not a folder' if path.exists() else 'does not exist'}"
        )
    if not file.exists():
        raise UserError(f"{path} is not a recording, or is incomplete: it has no index.json")
    index = read_json(file)
    if not isinstance(index, dict) or index.get("format") != _FORMAT:
        raise UserError(f"{path} is not a recording: the format in {file} must be {_FORMAT!r}")
    if index.get("version") != _VERSION:
        raise UserError(
            f"{path}: version of the recording format must be {_VERSION}, got "
            f"{index.get('version')!r}: record it again"
        )
    return index


@dataclass(frozen=True, kw_only=True)
class _StoredRead:
    """Read in index.json."""

    name: str
    role: Role | None
    num_calls: int
    calls: tuple[Call, ...]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class _RecordingIndex:
    """Content of index.json."""

    format: str
    version: int
    dtype: str
    rows: tuple[int, ...] | None
    heads: tuple[int, ...] | None
    queries: tuple[int, ...] | None
    reads: tuple[_StoredRead, ...]


def _check_read(read: _StoredRead, part: Part) -> ReadRecord:
    """Return the calls of a read. Raises ValueError if they are inconsistent."""
    numbers = [call.number for call in read.calls]
    if (
        len(read.shapes) != len(numbers)
        or numbers != sorted(set(numbers))
        or not -1 < read.num_calls <= _MOST_CALLS
    ):
        raise ValueError(
            f"the read {read.name[:60]!r} must have one shape per call, in ascending order of "
            f"calls, got "
            f"{len(numbers)} calls and {len(read.shapes)} shapes"
        )
    if numbers and not 0 <= numbers[0] <= numbers[-1] < read.num_calls:
        raise ValueError(
            f"the read {read.name[:60]!r} ran {read.num_calls} times, but has calls {numbers[0]} "
            f"to {numbers[-1]}"
        )
    for call, shape in zip(read.calls, read.shapes, strict=True):
        if not 2 <= len(call.sizes) <= 4 or not all(0 <= size <= _MOST for size in call.sizes):
            raise ValueError(f"invalid sizes of weights: {list(call.sizes)[:8]}")
        if not 0 <= call.first_key <= _MOST:
            raise ValueError(f"first_key must be from 0 to {_MOST}, got {call.first_key}")
        expected = part.shape(call.sizes)
        if expected != shape:
            raise ValueError(
                f"weights of shape {list(call.sizes)} must be recorded as {list(expected)}, got "
                f"{shape[:8]}"
            )
    if len({call.sizes[1] for call in read.calls if len(call.sizes) == 4}) > 1:
        raise ValueError(
            f"the read {read.name[:60]!r} must have the same number of heads in all calls"
        )
    return ReadRecord(
        role=read.role, num_calls=read.num_calls, calls=list(read.calls), shapes=list(read.shapes)
    )
