"""Tensors of modules and optimizers: safetensors files, and loading into modules.

Tied tensors are stored once.
"""

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.errors import UserError
from regard.system.writing import replace_atomically

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], *, ties: Mapping[str, str] | None = None
) -> None:
    """Write CPU tensors to a file, atomically and flushed to disk.

    Raises: UserError naming the file if it cannot be written.
    """
    # One entry: the library writes several in random order, and equal runs must be equal files.
    metadata = {"format": "pt"}  # which Transformers asks for; it does not read files with ties
    if ties:
        metadata = {"ties": json.dumps(dict(ties))}
    try:
        with replace_atomically(path) as unfinished:
            contiguous = {name: value.detach().contiguous() for name, value in tensors.items()}
            unfinished.touch()
            mode = unfinished.stat().st_mode
            save_file(contiguous, unfinished, metadata)
            unfinished.chmod(mode)  # the library makes files that only their owner reads
    except SafetensorError as error:
        raise UserError(f"{path}: cannot be written: {error}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, tied ones once, on the CPU.

    Raises: UserError naming the file if it is missing, damaged, or not a safetensors file.
    """
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: damaged or missing: {error}") from error


def load_weights(path: Path, model: nn.Module) -> None:
    """Load the weights that `fit` wrote into a model.

    Raises: UserError naming the file if it is missing, damaged, does not fit the model, or holds a
            weight that is not finite.
    """
    load_tensors(model, read_tensors(path), origin=str(path))
    if bad := find_nonfinite(model):
        raise UserError(f"{path} cannot be used: {bad}.")


def ties_of(model: nn.Module) -> dict[str, str]:
    """Return the names of tied tensors: {other name: first name}."""
    first: dict[int, str] = {}
    ties = {}
    for name, value in model.state_dict(keep_vars=True).items():
        original = first.setdefault(id(value), name)
        if original != name:
            ties[name] = original
    return ties


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and saved buffers of a model, tied ones once; not copied."""
    ties = ties_of(model)
    return {name: value for name, value in model.state_dict().items() if name not in ties}


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Return True for a tensor of which each process holds a part (FSDP2)."""
    # A DTensor exists only if its module is imported, which takes 0.7 s.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def to_local(tensor: Tensor) -> Tensor:
    """Return this process's shard of a sharded tensor, any other as it is."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def distribute_like(whole: Tensor, *, like: Tensor) -> Tensor:
    """Return a whole tensor on the device of `like`, or this process's shard if that is sharded."""
    whole = whole.to(like.device)
    if not is_sharded(like):
        return whole
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415  # see is_sharded

    # Every process has the whole tensor and takes its own shard, so nothing is communicated.
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def find_nonfinite(model: nn.Module, tensors: Mapping[str, Tensor] | None = None) -> str | None:
    """Return which weight holds NaN or infinity, for a message; None if all are finite.

    tensors: tensors to check instead of those of the model, by their names in the model.
    """
    weights = {name for name, _ in model.named_parameters()}
    for name, value in (tensors_of(model) if tensors is None else tensors).items():
        local = to_local(value.detach())
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
    """Copy whole tensors into a model, sharded or not. `origin` names their source in messages."""
    own = tensors_of(model)
    errors = [f"{name} is not in the model" for name in tensors if name not in own]
    for name, value in own.items():
        given = tensors.get(name)
        if given is None:
            errors.append(f"{name} is missing")
        elif given.shape != value.shape or given.dtype != value.dtype:
            errors.append(
                f"{name} is {tuple(given.shape)} of {given.dtype}, expected {tuple(value.shape)} "
                f"of {value.dtype}"
            )
    if errors:
        shown = "; ".join(errors[:3])
        raise UserError(f"{origin} does not fit this model: {shown} ({len(errors)} differences)")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(distribute_like(tensors[name], like=value))
