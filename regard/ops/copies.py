"""Copies of tensors between the CPU and another device, without waits where possible."""

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_PINNED = WeakTensorKeyDictionary()


def copy_to(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to a device without waiting for its queue: to CUDA from pinned memory.

    The pinned memory is kept for `cpu_copy` as long as the copy on CUDA lives. A copy to the CPU
    waits, as its numbers may be read at once.
    """
    kind = torch.device(device).type
    is_upload = tensor.device.type == "cpu" and kind == "cuda"
    tensor = tensor.pin_memory() if is_upload else tensor
    copy = tensor.to(device, non_blocking=kind != "cpu")
    if is_upload and not copy.is_inference():  # one in inference mode has no version
        _PINNED[copy] = tensor, copy._version
    return copy


def cpu_copy(tensor: Tensor) -> Tensor:
    """Copy a tensor to the CPU; no wait for its device if `copy_to` made it and it is unchanged."""
    pinned, version = (None, None) if tensor.is_cpu else _PINNED.get(tensor, (None, None))
    return tensor.cpu() if pinned is None or version != tensor._version else pinned
