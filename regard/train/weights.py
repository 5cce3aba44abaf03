"""Weights in files: safetensors, written whole or not at all, tied weights once.

A file holds each distinct tensor under its first name, and in its metadata, as JSON, which other names mean
the same: `{"ties": {"writes.project.weight": "reads.embed.weight"}}`. Files are the same whether a model was
whole or in shards.
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
from regard.files import written_whole
from regard.train.tensor_file import read_tensors, write_tensors


def save_weights(path: Path, model: nn.Module) -> None:
    """Write a model's weights and buffers to `path` (.safetensors); a file that is there is replaced at
    once."""
    write_tensors(path, {name: value.detach().cpu() for name, value in tensors_of(model).items()}, ties=ties_of(model))


def load_weights(path: Path, model: nn.Module) -> None:
    """Read into `model` what `save_weights` or `fit` wrote.

    Raises UserError, naming the file, if it is missing, damaged, made for another model, or holds a weight that is no
    finite number.
    """
    fill(model, read_tensors(path), origin=str(path))
    if bad := not_finite(model):
        raise UserError(f"{path} cannot be used: {bad}, so that no answer would mean anything.")


def ties_of(model: nn.Module) -> dict[str, str]:
    """Of each tied tensor, its further names and what they stand for: {further name: first name}."""
    first: dict[int, str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        first.setdefault(id(value), name)
    named = {name: first[id(value)] for name, value in model.state_dict(keep_vars=True).items()}
    return {name: original for name, original in named.items() if name != original}


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's own weights and saved buffers, tied ones once; changing them in place changes the model."""
    ties = ties_of(model)
    return {name: value for name, value in model.state_dict().items() if name not in ties}


def placed(whole: Tensor, *, like: Tensor) -> Tensor:
    """A whole tensor on the device of `like`, or this process's part of it if `like` is in shards."""
    whole = whole.to(like.device)
    if not isinstance(like, DTensor):
        return whole
    # Every process has the whole tensor, so each cuts its own part and nothing is sent.
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def not_finite(model: nn.Module, tensors: Mapping[str, Tensor] | None = None) -> str | None:
    """Which weight is NaN or infinite, as the end of a sentence; None if all are numbers.

    tensors: weights to look at in place of the model's own, by their names there.
    """
    weights = {name for name, _ in model.named_parameters()}
    for name, value in (tensors_of(model) if tensors is None else tensors).items():
        own = _local(value.detach())
        if not own.is_floating_point() or not own.numel():
            continue
        low, high = (float(bound) for bound in own.aminmax())
        if math.isnan(low) or math.isnan(high):
            return f"{name} holds NaN"
        # A buffer may hold infinity on purpose, as a mask of scores does.
        if name in weights and (math.isinf(low) or math.isinf(high)):
            return f"{name} holds infinity"
    return None


def fill(model: nn.Module, tensors: Mapping[str, Tensor], *, origin: str) -> None:
    """Copy whole tensors into a model, in shards or not; `origin` is what an error calls them."""
    own = tensors_of(model)
    faults = [f"{name} is missing" for name in own if name not in tensors]
    faults += [f"{name} is not in the model" for name in tensors if name not in own]
    faults += [
        f"{name} is {tuple(tensors[name].shape)} and not {tuple(value.shape)}"
        for name, value in own.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    faults += [
        f"{name} is {tensors[name].dtype} and not {value.dtype}"
        for name, value in own.items()
        if name in tensors and tensors[name].dtype != value.dtype
    ]
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise UserError(f"{origin} is of another model: {'; '.join(faults[:3])}{more}.")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(placed(tensors[name], like=value))


def publish(source: Path, path: Path) -> None:
    """Replace `path` at once by a copy of the file `source`.

    A hard link would not do: writing into `path` would then change `source`. Where the file system can share blocks
    until one of the files is written to, it does.
    """
    with source.open("rb") as file, written_whole(path) as copy:
        if not _is_cloned(file, copy):
            file.seek(0)
            copy.seek(0)
            shutil.copyfileobj(file, copy)


def _is_cloned(file: BinaryIO, copy: BinaryIO) -> bool:
    """Copy a file by the system's own call, which moves no bytes where it need not; False if it cannot."""
    if not hasattr(os, "copy_file_range"):  # not Linux
        return False
    left, done = os.fstat(file.fileno()).st_size, 1
    with suppress(OSError):
        while left and done:
            done = os.copy_file_range(file.fileno(), copy.fileno(), left)
            left -= done
    return not left


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value
