"""Memory layouts of random tensors, which must make no difference."""

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = ["lay_out"]


class ValueGenerator(Protocol):
    """Interface of the generator of random reads."""

    dtype: torch.dtype
    leading: tuple[int, ...]

    def choose(self, choices: dict[Any, float] | list | tuple) -> Any: ...

    def flip(self, share: float) -> bool: ...


def lay_out(generator: ValueGenerator, array: np.ndarray, *, plain: bool) -> Tensor:
    """Return the numbers as a contiguous, transposed, strided or expanded tensor."""
    tensor = torch.tensor(array).to(generator.dtype)
    if plain:
        return tensor
    match generator.choose({"plain": 0.6, "turned": 0.2, "stepped": 0.2}):
        case "turned":
            return tensor.transpose(-2, -1).contiguous().transpose(-2, -1)
        case "stepped":
            return torch.stack((tensor, tensor), -1).flatten(-2)[..., ::2]
    spreads = [
        axis for axis, n in enumerate(tensor.shape[:-2]) if n == 1 and axis < len(generator.leading)
    ]
    if spreads and generator.flip(0.3) and len(spreads) == len(tensor.shape[:-2]):
        return tensor.expand(*generator.leading[: len(spreads)], *tensor.shape[-2:])
    return tensor
