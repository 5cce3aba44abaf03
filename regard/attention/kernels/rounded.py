"""A tensor and what it rounds to, side by side: under autocast every product wants its items in bfloat16.

What makes items and can round them on the way hands on both; the products take the rounded ones. That spares a pass
over memory to round them, and two on the way back: the gradient of the rounded items is added where that of the items
is read. What is computed is the same as without; gradients of what several products read (an encoder's output, by each
block of the decoder) are summed in bfloat16, where without they are summed in single precision.
"""

import torch
from torch import Tensor

_NAME = "_regard_rounded"


def is_wanted() -> bool:
    """Whether products on a CPU are computed in bfloat16 here."""
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


def hand_on(x: Tensor, rounded: Tensor) -> Tensor:
    """x, which brings `rounded` along until it is changed."""
    if not x.is_inference():  # whose changes are not counted
        setattr(x, _NAME, (rounded, x._version))
    return x


def take(x: Tensor) -> Tensor:
    """What x brings along where products would round it, else x."""
    brought = getattr(x, _NAME, None)
    if brought is None or not is_wanted():
        return x
    rounded, version = brought
    return rounded if version == x._version else x
