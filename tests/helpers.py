"""Comparison of tensors within the error bound of their dtype."""

import torch
from torch import Tensor

BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Maximum relative and absolute error of results computed in each dtype."""


def close(actual: Tensor, expected: Tensor) -> None:
    """Fail unless both have one shape and differ by no more than the bound of the coarser of their dtypes.

    Integers and booleans must be equal.
    """
    floats = [tensor.dtype for tensor in (actual, expected) if tensor.is_floating_point()]
    bound = max((BOUNDS[dtype] for dtype in floats), default=0.0)
    wide = [tensor.detach().double() if floats else tensor for tensor in (actual, expected)]
    torch.testing.assert_close(*wide, rtol=bound, atol=bound, check_device=False)
