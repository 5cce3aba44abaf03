"""Tensors of a read as arrays: sizes of its weights, and numbers on the CPU."""

import numpy as np
import torch
from torch import Tensor

from regard.attention.inputs import AttentionInputs
from regard.compat.torch import unwrap

MASKED = -0.0
"""Recorded weight of a masked pair: equal to 0, but pictures can tell it from a choice's 0."""


def numbers_of(values: Tensor, dtype: torch.dtype) -> np.ndarray:
    """Return the values as an array: on the CPU, detached, without the wrappers of torch.func."""
    # Inside torch.func transforms every torch operation wraps its result; DLPack does not.
    return np.from_dlpack(unwrap(values.detach().to("cpu", dtype).contiguous()))


def sizes_of(inputs: AttentionInputs) -> tuple[int, ...]:
    """Return the shape (batch, [head,] query, key) of the weights of a read."""
    return *inputs.leading, inputs.query.shape[-2], inputs.keys.shape[-2]
