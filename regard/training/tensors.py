"""Tensors of modules and optimizers: read from and written to safetensors files, and loaded into
modules.

Files are written whole, with a checksum that is verified when they are read. Tied tensors are
stored once.
"""

import json
import math
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeGuard

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from regard.errors import UserError
from regard.system.files import check_content, check_file
from regard.system.fingerprints import digest, encode_canonically, fingerprint, read_blocks
from regard.system.writing import open_atomically

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

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
_START = 100


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], *, ties: Mapping[str, str] | None = None
) -> str:
    """Write CPU tensors to a file, atomically and flushed to disk. Return its fingerprint.

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
        entries[name] = {
            "dtype": _DTYPES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    metadata = {_CHECKSUM: digest([encode_canonically(entries), *parts])}
    if ties:
        metadata["ties"] = json.dumps(dict(ties))
    header = json.dumps({_METADATA: metadata, **entries}, separators=(",", ":")).encode("utf-8")
    header += b" " * (-len(header) % 8)
    blocks = (len(header).to_bytes(8, "little"), header, *parts)
    with open_atomically(path) as file:
        for block in blocks:
            file.write(block)
    return fingerprint(blocks)  # of what was to be written, so that an error of the disk is found


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, tied ones once, on the CPU.

    Raises:  UserError naming the file if it is missing, not a regular file, damaged, or not a
             safetensors file.
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
    except (
        SafetensorError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
        OSError,
    ) as error:
        raise UserError(
            f"{path} is damaged or not a safetensors file: {str(error) or type(error).__name__}."
        ) from error


def save_weights(path: Path, model: nn.Module) -> None:
    """Save the parameters and buffers of a model to `path` (.safetensors), replacing an existing
    file atomically."""
    write_tensors(
        path,
        {name: value.detach().cpu() for name, value in tensors_of(model).items()},
        ties=ties_of(model),
    )


def load_weights(path: Path, model: nn.Module) -> None:
    """Load the weights that `save_weights` or `fit` wrote into a model.

    Raises UserError naming the file if it is missing, damaged, does not fit the model, or holds a
    weight that is not finite.
    """
    load_tensors(model, read_tensors(path), origin=str(path))
    if bad := find_nonfinite(model):
        raise UserError(f"{path} cannot be used: {bad}.")


def ties_of(model: nn.Module) -> dict[str, str]:
    """Return the names of tied tensors: {other name: first name}."""
    first: dict[int, str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        first.setdefault(id(value), name)
    originals = {name: first[id(value)] for name, value in model.state_dict(keep_vars=True).items()}
    return {name: original for name, original in originals.items() if name != original}


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and saved buffers of a model, tied ones once; they share storage with
    the model."""
    ties = ties_of(model)
    return {name: value for name, value in model.state_dict().items() if name not in ties}


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Return True for a tensor of which each process holds a part (FSDP2)."""
    # Not imported at the top: that takes 0.7 s, and a DTensor exists only if its module is
    # imported.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def distribute_like(whole: Tensor, *, like: Tensor) -> Tensor:
    """Return a whole tensor on the device of `like`, or this process's shard of it if `like` is
    sharded."""
    whole = whole.to(like.device)
    if not is_sharded(like):
        return whole
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415  # see is_sharded

    # Every process has the whole tensor and takes its own shard, so nothing is communicated.
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def find_nonfinite(model: nn.Module, tensors: Mapping[str, Tensor] | None = None) -> str | None:
    """Return which weight holds NaN or infinity, as text for an error message; None if all are
    finite.

    tensors: tensors to check instead of those of the model, by their names in the model.
    """
    weights = {name for name, _ in model.named_parameters()}
    for name, value in (tensors_of(model) if tensors is None else tensors).items():
        local = value.detach()
        local = local.to_local() if is_sharded(local) else local
        if not local.is_floating_point() or not local.numel():
            continue
        low, high = (float(bound) for bound in local.aminmax())
        if math.isnan(low) or math.isnan(high):
            return f"{name} holds NaN"
        # A buffer may hold infinity on purpose, such as a mask of scores.
        if name in weights and (math.isinf(low) or math.isinf(high)):
            return f"{name} holds infinity"
    return None


def load_tensors(model: nn.Module, tensors: Mapping[str, Tensor], *, origin: str) -> None:
    """Copy whole tensors into a model, sharded or not. `origin` names their source in error
    messages."""
    own = tensors_of(model)
    errors = [f"{name} is missing" for name in own if name not in tensors]
    errors += [f"{name} is not in the model" for name in tensors if name not in own]
    errors += [
        f"{name} must have shape {tuple(value.shape)}, got {tuple(tensors[name].shape)}"
        for name, value in own.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    errors += [
        f"{name} must have dtype {value.dtype}, got {tensors[name].dtype}"
        for name, value in own.items()
        if name in tensors and tensors[name].dtype != value.dtype
    ]
    if errors:
        more = f" and {len(errors) - 3} more" if len(errors) > 3 else ""
        raise UserError(f"{origin} does not fit this model: {'; '.join(errors[:3])}{more}.")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(distribute_like(tensors[name], like=value))


def publish(source: Path, path: Path) -> None:
    """Replace `path` atomically by a copy of the file `source`.

    A hard link is not used, as writing to `path` would then change `source`. File systems with
    copy-on-write share the blocks of both files.
    """
    with source.open("rb") as file, open_atomically(path) as copy:
        if not _copy_file_range(file, copy):
            file.seek(0)
            copy.seek(0)
            shutil.copyfileobj(file, copy)


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
        actual = digest(chain([encode_canonically(entries)], read_blocks(file)))
    if expected != actual:
        raise ValueError("its checksum is not that of its content")


def _copy_file_range(file: BinaryIO, copy: BinaryIO) -> bool:
    """Copy a file with the system call of that name. Return False if that is not possible."""
    if not hasattr(os, "copy_file_range"):  # not Linux
        return False
    left, done = os.fstat(file.fileno()).st_size, 1
    with suppress(OSError):
        while left and done:
            done = os.copy_file_range(file.fileno(), copy.fileno(), left)
            left -= done
    return not left
