"""Saving and loading of model weights as safetensors files, tied weights once.

A file holds each distinct tensor under its first name. Its metadata lists, as JSON, the other names of tied tensors:
`{"ties": {"writes.project.weight": "reads.embed.weight"}}`. Files do not depend on whether the model was sharded.
"""

import math
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from regard.errors import UserError
from regard.files import open_atomically
from regard.train.tensor_file import read_tensors, write_tensors


def save_weights(path: Path, model: nn.Module) -> None:
    """Save the parameters and buffers of a model to `path` (.safetensors), replacing an existing file atomically."""
    write_tensors(path, {name: value.detach().cpu() for name, value in tensors_of(model).items()}, ties=ties_of(model))


def load_weights(path: Path, model: nn.Module) -> None:
    """Load the weights that `save_weights` or `fit` wrote into a model.

    Raises UserError naming the file if it is missing, damaged, does not fit the model, or holds a weight that is not
    finite.
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
    """Return the parameters and saved buffers of a model, tied ones once; they share storage with the model."""
    ties = ties_of(model)
    return {name: value for name, value in model.state_dict().items() if name not in ties}


def distribute_like(whole: Tensor, *, like: Tensor) -> Tensor:
    """Return a whole tensor on the device of `like`, or this process's shard of it if `like` is sharded."""
    whole = whole.to(like.device)
    if not isinstance(like, DTensor):
        return whole
    # Every process has the whole tensor and takes its own shard, so nothing is communicated.
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def find_nonfinite(model: nn.Module, tensors: Mapping[str, Tensor] | None = None) -> str | None:
    """Return which weight holds NaN or infinity, as text for an error message; None if all are finite.

    tensors: tensors to check instead of those of the model, by their names in the model.
    """
    weights = {name for name, _ in model.named_parameters()}
    for name, value in (tensors_of(model) if tensors is None else tensors).items():
        local = value.detach()
        local = local.to_local() if isinstance(local, DTensor) else local
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
    """Copy whole tensors into a model, sharded or not. `origin` names their source in error messages."""
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

    A hard link is not used, as writing to `path` would then change `source`. File systems with copy-on-write share the
    blocks of both files.
    """
    with source.open("rb") as file, open_atomically(path) as copy:
        if not _copy_file_range(file, copy):
            file.seek(0)
            copy.seek(0)
            shutil.copyfileobj(file, copy)


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
