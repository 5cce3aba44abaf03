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
from regard.look.part import Part, Tile

__all__ = ["DTYPES", "Call", "Folder", "Heard", "load", "numbers_of"]

DTYPES = {torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}
"""What weights may be kept in, by their names in safetensors."""

_FORMAT, _VERSION = "regard recording", 1
_ALIGNMENT = 8
"""Tensors start at a multiple of so many bytes, so that they can be mapped."""


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
    index = _index(path)
    try:
        names = {name: dtype for dtype, name in DTYPES.items()}
        folder = Folder(path, dtype=names[index["dtype"]], is_new=False)
        part = Part(**{name: index[name] for name in ("rows", "heads", "queries")})
        reads = {read["name"]: _heard(read) for read in index["reads"]}
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path / 'index.json'} is damaged: {type(error).__name__} {error}") from error
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
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            got = file.stat().st_size - 8 - length
            header = json.loads(opened.read(length)) if got == expected else None
    except FileNotFoundError:
        raise UserError(f"{file} is missing: the recording is not whole") from None
    except ValueError as error:
        raise UserError(f"{file} is damaged: its header is no JSON ({error})") from error
    if header is None:
        raise UserError(f"{file} is damaged: it must hold {expected:,} bytes of weights, but holds {max(0, got):,}")
    tensor = header.get("weights") if isinstance(header, dict) else None
    stated = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [0, expected]}
    if tensor != stated or length % _ALIGNMENT:
        raise UserError(f"{file} is not of this recording: its header must say {stated}, but says {tensor}")
    return 8 + length, 8 + length + expected


def _index(path: Path) -> dict[str, Any]:
    file = path / "index.json"
    if not path.is_dir():
        raise UserError(f"a recording is a folder, but {path} is {'a file' if path.exists() else 'not there'}")
    try:
        index = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is no recording, or was never finished: it has no index.json") from None
    except ValueError as error:
        raise UserError(f"{file} is damaged: {error}") from error
    if not isinstance(index, dict) or index.get("format") != _FORMAT:
        raise UserError(f"{path} is no recording: {file} does not say that it is a {_FORMAT!r}")
    if index.get("version") != _VERSION:
        raise UserError(f"{path} has version {index.get('version')!r} of the format; this regard reads {_VERSION}")
    return index


def _heard(read: dict[str, Any]) -> Heard:
    stated: list[dict[str, Any]] = [{**call, "sizes": _sizes(call["sizes"])} for call in read["calls"]]
    calls = [Call(**call) for call in stated]
    shapes = [_sizes(shape) for shape in read["shapes"]]
    if not isinstance(read["ran"], int) or len(shapes) != len(calls):
        raise ValueError(f"{len(calls)} calls, {len(shapes)} shapes, ran {read['ran']!r}")
    if not all(isinstance(call.number, int) and call.number >= 0 and isinstance(call.kernel, str) for call in calls):
        raise ValueError("a call without number or kernel")
    return Heard(ran=read["ran"], calls=calls, shapes=shapes)


def _sizes(values: Any) -> tuple[int, ...]:
    sizes = tuple(values)
    if len(sizes) < 2 or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise ValueError(f"no shape of weights: {values!r}")
    return sizes
