"""What a read is given must fit together: each mistake is named before anything is computed."""

import math

import torch
from torch import Tensor

from regard.attention.masks import can_look_at

__all__ = ["check_numbers", "check_pair"]


def check_pair(query: Tensor, keys: Tensor, values: Tensor) -> None:
    """Raise TypeError or ValueError unless queries can read these keys and values.

    Rules: floating tensors of one dtype (autocast mixes them) on one device; (..., query, dim), (..., key, dim) and
    (..., key, value_dim) whose leading axes broadcast, or whose heads are grouped.
    """
    leading = query.shape[:-2]
    same = query.dtype == keys.dtype == values.dtype and query.device == keys.device == values.device
    if same and query.dim() >= 2 and leading == keys.shape[:-2] == values.shape[:-2] and query.is_floating_point():
        return
    if query.dim() < 2:
        raise ValueError(f"query must be (..., query, dim), but has shape {tuple(query.shape)}")
    if not query.is_floating_point():
        raise TypeError(f"query must be floating point, but has dtype {query.dtype}")
    for name, tensor in (("keys", keys), ("values", values)):
        if tensor.dtype != query.dtype and not torch.is_autocast_enabled(query.device.type):
            raise TypeError(f"{name} must have the query's dtype {query.dtype}, but have {tensor.dtype}")
        if tensor.device != query.device:
            raise ValueError(f"{name} must be on the query's device {query.device}, but are on {tensor.device}")
        _check_leading(name, tensor, query)


def check_numbers(out: Tensor, keys: Tensor, values: Tensor) -> None:
    """Raise ValueError if NaN in the keys or the values has spoilt what was read.

    Only where looking is free of waiting: on a CPU, and not in compiled or mapped functions. What was read is looked at
    first, and little of it: NaN in a key spoils the whole of each row that may read it, so the first number of each row
    tells, and NaN in a value spoils the same number of each row, so the last row tells, which sees the most.
    """
    if not can_look_at(out) or out.numel() == 0:
        return
    # Infinities that cancel give NaN as well; then nothing is found below.
    if not math.isnan(out.detach()[..., 0].sum().item() + out.detach()[..., -1, :].sum().item()):
        return
    for name, tensor in (("keys", keys), ("values", values)):
        if can_look_at(tensor) and bool(tensor.isnan().any()):
            where = tuple(tensor.isnan().nonzero()[0].tolist())
            raise ValueError(f"{name} must not hold NaN, but do at {where}, of {int(tensor.isnan().sum())} in all")


def _check_leading(name: str, tensor: Tensor, query: Tensor) -> None:
    read, asked = tensor.shape[:-2], query.shape[:-2]
    for axis in range(1, min(len(read), len(asked)) + 1):
        ours, theirs = read[-axis], asked[-axis]
        grouped = axis == 1 and query.dim() >= 4 and tensor.dim() >= 4 and ours > 0 and theirs % ours == 0
        if ours != theirs and 1 not in (ours, theirs) and not grouped:
            heads = ", or divide them if they are heads" if axis == 1 and query.dim() >= 4 else ""
            raise ValueError(
                f"the leading axes of {name} must be the query's {tuple(asked)} or 1{heads}, but are {tuple(read)}"
            )
