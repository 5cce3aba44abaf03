"""Comparison of tensors within the bound of their dtype; what tests skip or expect elsewhere."""

from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from regard.layers.positions.config import GridRotaryConfig, PositionsConfig
from regard.ops.dispatch import unsupported_reason
from regard.training.tensors import tensors_of, ties_of, write_tensors

SEQUENCE_POSITIONS = [kind for kind in get_args(PositionsConfig) if kind is not GridRotaryConfig]
"""Configs of positions of sequences."""
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Maximum relative and absolute error of results computed in each dtype."""

_REASON = unsupported_reason()
NEEDS_NATIVE = pytest.mark.skipif(_REASON is not None, reason="compiled code is absent")
ADDITIVE_KERNELS = ("reference", "additive") if _REASON is None else ("reference",)
"""Kernels that compute additive scores here."""


def close(actual: Tensor, expected: Tensor) -> None:
    """Fail unless both have one shape and differ at most by the bound of the coarser dtype.

    Integers and booleans must be equal.
    """
    floats = [tensor.dtype for tensor in (actual, expected) if tensor.is_floating_point()]
    bound = max((BOUNDS[dtype] for dtype in floats), default=0.0)
    wide = [tensor.detach().double() if floats else tensor for tensor in (actual, expected)]
    torch.testing.assert_close(*wide, rtol=bound, atol=bound, check_device=False)


def save_weights(path: Path, model: nn.Module) -> None:
    """Save the parameters and buffers of a model."""
    write_tensors(path, tensors_of(model), ties=ties_of(model))


def without_gradient(model: nn.Module) -> set[str]:
    """Return the names of the parameters whose gradient is missing, or zero up to rounding in
    float64.

    The gradient of a parameter that cancels, as a bias of all keys does in a softmax, is rounding
    noise: about 1e-17 of the largest gradient. The gradients of the others are at least 1e-8 of it.
    """
    gradients = {name: value.grad for name, value in model.named_parameters()}
    sizes = {
        name: 0.0 if value is None else value.abs().max().item()
        for name, value in gradients.items()
    }
    assert all(value is None or value.dtype == torch.float64 for value in gradients.values())
    return {name for name, size in sizes.items() if size <= 1e-12 * max(sizes.values())}
