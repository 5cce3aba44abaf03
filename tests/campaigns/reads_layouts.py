"""Memory layouts of random tensors, which must make no difference."""

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = ["lay_out"]


class Drawing(Protocol):
    """Interface of the generator of random reads."""

    dtype: torch.dtype
    leading: tuple[int, ...]

    def of(self, choices: dict[Any, float] | list | tuple) -> Any: ...

    def has(self, share: float) -> bool: ...


def lay_out(maker: Drawing, array: np.ndarray, *, plain: bool) -> Tensor:
    """Return the numbers as a contiguous, transposed, strided or expanded tensor."""
    tensor = torch.tensor(array).to(maker.dtype)
    if plain:
        return tensor
    match maker.of({"plain": 0.6, "turned": 0.2, "stepped": 0.2}):
        case "turned":
            return tensor.transpose(-2, -1).contiguous().transpose(-2, -1)
        case "stepped":
            return torch.stack((tensor, tensor), -1).flatten(-2)[..., ::2]
    spreads = [axis for axis, n in enumerate(tensor.shape[:-2]) if n == 1 and axis < len(maker.leading)]
    if spreads and maker.has(0.3) and len(spreads) == len(tensor.shape[:-2]):
        return tensor.expand(*maker.leading[: len(spreads)], *tensor.shape[-2:])
    return tensor
