"""Constant tensors, computed from Python numbers when they are used.

A module keeps the numbers, not a tensor: `to(torch.bfloat16)` would round a buffer, `to_empty`
would empty it, and a strict `load_state_dict` would not fill it.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.compat.torch import is_eager, run_while_tracing


@run_while_tracing
def constant(
    make: Callable[..., Tensor], *numbers: Any, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Return make(*numbers) on a device and in a dtype; the same tensor for the same arguments.

    make: returns a tensor on the CPU, of floating-point numbers in float64.
    """
    if is_eager():
        return _keep(make, numbers, device, dtype)
    return make(*numbers).to(device, dtype)


@functools.lru_cache(maxsize=256)
def _keep(
    make: Callable[..., Tensor], numbers: tuple[Any, ...], device: torch.device, dtype: torch.dtype
) -> Tensor:
    with torch.inference_mode(mode=False), torch.no_grad():  # autograd saves the tensor
        return make(*numbers).to(device, dtype)


def tensor_of(numbers: tuple[Any, ...]) -> Tensor:
    """Return a tensor of these numbers, integers or in float64."""
    is_whole = all(isinstance(number, int) for number in numbers)
    return torch.tensor(numbers, dtype=torch.int64 if is_whole else torch.float64, device="cpu")
