"""Recordings on disk: a folder of plain tensors and one page of JSON.

    RECORDING/index.json                 what ran: reads, calls, kernels, masks, shapes; the format and its version
    RECORDING/0003-00000012.safetensors  "weights" of call 12 of the index's read 3, rows first, keys last

A file is written tile by tile: the header of a safetensors file says where a tensor lies, so it can come first, and
the numbers when they are there. Reading maps the file into memory, and a page of it is loaded when it is looked at.

A recording is written under another name, its index last, and renamed when it is whole; a process that is killed
leaves nothing under the name that was asked for. What is on the disk after a power cut is not vouched for.
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

from regard.errors import UserError
from regard.files import check_file, parse_json, read_json
from regard.look.part import Part, Tile
from regard.look.plain import made

DTYPES = {torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}
"""What weights may be kept in, by their names in safetensors."""

_FORMAT, _VERSION = "regard recording", 1
_ALIGNMENT = 8
"""Tensors start at a multiple of so many bytes, so that they can be mapped."""
_MOST, _MOST_CALLS, _MOST_HEADER = 10_000_000, 100_000_000, 1 << 20
"""Of each axis of a read, of the calls of a read, of a header's bytes, in a recording that is opened."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """What is known of one call of a read, beside its weights."""

    number: int
    """Calls of this read that came before, kept or not."""
    sizes: tuple[int, ...]
    """(batch, [head,] query, key) that were read; what is kept may be a part of it."""
    kernel: str
    """The kernel that computed what the model went on with."""
    mask: str | None
    """The masks of the read and its memory, as they print; None: every query saw every key."""
    bias: str | None
    autocast: str | None
    """The dtype that autocast computed products in, for the model and for these weights; None where it was off."""


@dataclass(kw_only=True)
class Heard:
    """What was heard of one read."""

    ran: int = 0
    """Calls, kept or not."""
    calls: list[Call]
    """Those that are kept, in their order."""
    shapes: list[tuple[int, ...]]
    """Of the weights kept of each call."""


class Folder:
    """Where weights are written and read.

    Raises: ValueError if the folder exists, or could not be made because there is none to make it in.
    """

    def __init__(self, path: Path, *, dtype: torch.dtype, is_new: bool):
        self.path = path
        self.dtype = dtype
        self._name = path
        if not is_new:
            return
        if path.exists() or path.is_symlink():
            raise ValueError(f"to must not exist yet, but {path} does: a recording is not written over")
        if not path.parent.is_dir():
            raise ValueError(f"to must lie in a folder that exists, but {path.parent} does not")
        self.path = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            self.path.mkdir()
        except FileExistsError:
            raise ValueError(f"another recording is being written to {path}: {self.path} exists") from None

    def write(self, read: int, call: Call, shape: tuple[int, ...], tiles: Iterable[Tile]) -> None:
        """One call's weights, each tile when it comes; a call that fails leaves no file."""
        file = self._file(read, call)
        facts = {name: json.dumps(value) for name, value in asdict(call).items()}
        try:
            with file.open("xb") as out:
                _stream(out, shape, self.dtype, tiles, facts)
        except BaseException:
            file.unlink(missing_ok=True)
            raise

    def finish(self, reads: Mapping[str, Heard], part: Part) -> None:
        """Write the index, and give the folder its name."""
        index = {"format": _FORMAT, "version": _VERSION, "dtype": DTYPES[self.dtype], **asdict(part)}
        index |= {"reads": [{"name": name, **asdict(heard)} for name, heard in reads.items()]}
        (self.path / "index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")
        self.path.rename(self._name)
        self.path = self._name

    def discard(self) -> None:
        """Remove what has been written."""
        shutil.rmtree(self.path, ignore_errors=True)

    def weights(self, read: int, call: Call, shape: tuple[int, ...]) -> Tensor:
        """One call's weights, of which nothing is loaded before it is looked at."""
        return _mapped(self._file(read, call), shape, self.dtype)

    def check(self, read: int, call: Call, shape: tuple[int, ...]) -> None:
        """Raise UserError if the call's file is missing, or has not the size of these weights."""
        _header(self._file(read, call), shape, self.dtype)

    def _file(self, read: int, call: Call) -> Path:
        return self.path / f"{read:04d}-{call.number:08d}.safetensors"


def load(path: Path) -> tuple[Folder, dict[str, Heard], Part]:
    """What `Folder.finish` wrote, checked: every file is there and has its size.

    Raises: UserError that names the file and what is wrong with it.
    """
    file = path / "index.json"
    index = _index(path)
    try:
        found = made(_Index, index, "index")
        if found.dtype not in DTYPES.values():
            raise ValueError(f"index.dtype must be one of {', '.join(DTYPES.values())}, but is {found.dtype[:60]!r}")
        part = Part(rows=found.rows, heads=found.heads, queries=found.queries)
        reads = {read.name: _heard(read, part) for read in found.reads}
        if len(reads) < len(found.reads):
            raise ValueError("a read is there twice")
    except (TypeError, ValueError) as error:
        raise UserError(f"{file} is damaged: {error}") from error
    folder = Folder(path, dtype=next(dtype for dtype, name in DTYPES.items() if name == found.dtype), is_new=False)
    for number, heard in enumerate(reads.values()):
        for call, shape in zip(heard.calls, heard.shapes, strict=True):
            folder.check(number, call, shape)
    return folder, reads, part


def numbers_of(weights: Tensor, dtype: torch.dtype) -> np.ndarray:
    """The numbers alone: on the CPU, without gradient, and out of torch.func.grad's wrappers.

    As an array: inside those transforms every operation of torch, numpy() too, would wrap its result again.
    """
    weights = weights.detach().to("cpu", dtype).contiguous()
    while torch._C._functorch.is_functorch_wrapped_tensor(weights):
        weights = torch._C._functorch.get_unwrapped(weights)
    return np.from_dlpack(weights)


def _stream(
    out: BinaryIO, shape: tuple[int, ...], dtype: torch.dtype, tiles: Iterable[Tile], facts: dict[str, str]
) -> None:
    size = math.prod(shape) * dtype.itemsize
    tensor = {"dtype": DTYPES[dtype], "shape": shape, "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": facts, "weights": tensor}).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    out.write(len(header).to_bytes(8, "little") + header)
    start = out.tell()
    out.truncate(start + size)
    num_written = 0
    for place, weights in tiles:
        _put(out, start, shape, place, numbers_of(weights, dtype))
        num_written += weights.numel()
    assert num_written == math.prod(shape), "tiles must cover what is kept"


def _put(out: BinaryIO, start: int, shape: tuple[int, ...], place: tuple[slice, ...], numbers: np.ndarray) -> None:
    """Write a tile where it belongs: one piece for each index of the axes before the last that it has a part of."""
    axis = len(shape) - 1
    while axis > 0 and place[axis] == slice(0, shape[axis]):
        axis -= 1
    strides = [math.prod(shape[after + 1 :]) for after in range(len(shape))]
    before = list(itertools.product(*(range(one.start, one.stop) for one in place[:axis])))
    for index, piece in zip(before, numbers.reshape(len(before), -1), strict=True):
        where = sum(at * stride for at, stride in zip((*index, place[axis].start), strides, strict=False))
        out.seek(start + where * numbers.itemsize)
        out.write(piece.data)


def _mapped(file: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    start, stop = _header(file, shape, dtype)
    try:
        # A private map: writing into the tensor changes no file.
        numbers = torch.from_file(str(file), shared=False, size=stop // dtype.itemsize, dtype=dtype)
    except RuntimeError as error:
        raise UserError(
            f"{file} of {stop:,} bytes cannot be mapped into memory; safetensors.safe_open(file).get_slice('weights') "
            f"reads parts of it ({error})"
        ) from error
    return numbers[start // dtype.itemsize :].view(shape)


def _header(file: Path, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, int]:
    """Where the numbers of a file start and end, once it is sure that they are the weights of this shape."""
    expected = math.prod(shape) * dtype.itemsize
    if not file.exists():
        raise UserError(f"{file} is missing: the recording is not whole")
    size = check_file(file).st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        got = size - 8 - length
        if got != expected or length > _MOST_HEADER:
            raise UserError(f"{file} is damaged: it must hold {expected:,} bytes of weights, but holds {max(0, got):,}")
        header = parse_json(opened.read(length), origin=str(file))
    tensor = header.get("weights") if isinstance(header, dict) else None
    stated = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [0, expected]}
    if tensor != stated or length % _ALIGNMENT:
        raise UserError(f"{file} is not of this recording: its header must say {stated}, but says {tensor}")
    return 8 + length, 8 + length + expected


def _index(path: Path) -> dict[str, Any]:
    file = path / "index.json"
    if not path.is_dir():
        raise UserError(f"a recording is a folder, but {path} is {'a file' if path.exists() else 'not there'}")
    if not file.exists():
        raise UserError(f"{path} is no recording, or was never finished: it has no index.json")
    index = read_json(file)
    if not isinstance(index, dict) or index.get("format") != _FORMAT:
        raise UserError(f"{path} is no recording: {file} does not say that it is a {_FORMAT!r}")
    if index.get("version") != _VERSION:
        raise UserError(f"{path} has version {index.get('version')!r} of the format; this regard reads {_VERSION}")
    return index


@dataclass(frozen=True, kw_only=True)
class _StoredRead:
    """A read as the index has it."""

    name: str
    ran: int
    calls: tuple[Call, ...]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class _Index:
    """The whole of index.json."""

    format: str
    version: int
    dtype: str
    rows: tuple[int, ...] | None
    heads: tuple[int, ...] | None
    queries: tuple[int, ...] | None
    reads: tuple[_StoredRead, ...]


def _heard(read: _StoredRead, part: Part) -> Heard:
    """A read, once it is sure that its numbers agree with one another."""
    numbers = [call.number for call in read.calls]
    if len(read.shapes) != len(numbers) or numbers != sorted(set(numbers)) or not -1 < read.ran <= _MOST_CALLS:
        raise ValueError(
            f"the read {read.name[:60]!r} has {len(numbers)} calls, {len(read.shapes)} shapes, in no order"
        )
    if numbers and not 0 <= numbers[0] <= numbers[-1] < read.ran:
        raise ValueError(
            f"the read {read.name[:60]!r} ran {read.ran} times, but has calls {numbers[0]} to {numbers[-1]}"
        )
    for call, shape in zip(read.calls, read.shapes, strict=True):
        if not 2 <= len(call.sizes) <= 4 or not all(0 <= size <= _MOST for size in call.sizes):
            raise ValueError(f"no sizes of weights: {list(call.sizes)[:8]}")
        if part.shape(call.sizes) != shape:
            raise ValueError(
                f"of weights {list(call.sizes)} must be kept {list(part.shape(call.sizes))}, not {shape[:8]}"
            )
    if len({call.sizes[1] for call in read.calls if len(call.sizes) == 4}) > 1:
        raise ValueError(f"the read {read.name[:60]!r} has not the same heads in all calls")
    return Heard(ran=read.ran, calls=list(read.calls), shapes=list(read.shapes))
