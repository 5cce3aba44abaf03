"""Weights in files: safetensors, written whole or not at all, tied weights once.

A file holds each distinct tensor under its first name, and in its metadata, as JSON, which other names mean
the same: `{"ties": {"writes.project.weight": "reads.embed.weight"}}`. Files are the same whether a model was
whole or in shards.
"""

import json
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from regard.errors import UserError

__all__ = [
    "fill",
    "flush_folder",
    "load_weights",
    "placed",
    "publish",
    "read_tensors",
    "save_weights",
    "tensors_of",
    "ties_of",
    "write_tensors",
]


def save_weights(path: Path, model: nn.Module) -> None:
    """Write a model's weights and buffers to `path` (.safetensors); a file that is there is replaced at
    once."""
    write_tensors(path, {name: value.detach().cpu() for name, value in tensors_of(model).items()}, ties=ties_of(model))


def load_weights(path: Path, model: nn.Module) -> None:
    """Read into `model` what `save_weights` or `fit` wrote.

    Raises UserError, naming the file, if it is missing, damaged, or made for another model.
    """
    fill(model, read_tensors(path), origin=str(path))


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
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise UserError(f"{origin} is of another model: {'; '.join(faults[:3])}{more}.")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(placed(tensors[name], like=value))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], *, ties: Mapping[str, str] | None = None) -> None:
    """Write CPU tensors to a file that appears under its name only when it is complete and on the disk."""
    unfinished = path.with_name(f".{path.name}.new")
    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    # safetensors makes files that only their owner may read; ours get the rights that any new file has.
    unfinished.touch()
    rights = stat.S_IMODE(unfinished.stat().st_mode)
    # One entry at most: safetensors writes several in any order, and equal weights should be equal files.
    save_file(contiguous, unfinished, metadata={"ties": json.dumps(dict(ties))} if ties else None)
    unfinished.chmod(rights)
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)
    flush_folder(path.parent)


def publish(source: Path, path: Path) -> None:
    """Have `path` show the file `source`, at once and without a second copy where the disk can do that."""
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)
    try:
        os.link(source, unfinished)
    except OSError:
        shutil.copyfile(source, unfinished)
    unfinished.replace(path)
    # Renaming does nothing if `path` was that file already.
    unfinished.unlink(missing_ok=True)
    flush_folder(path.parent)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, tied ones once, on the CPU."""
    if not path.is_file():
        raise UserError(f"{path} is missing.")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    except SafetensorError as error:
        raise UserError(f"{path} is damaged or no safetensors file: {error}.") from error


def flush_folder(folder: Path) -> None:
    """Have the system write a folder's entries to the disk, so that a renamed file survives a power cut."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
