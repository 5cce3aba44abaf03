"""Activations of feed-forward networks by name.

    relu        max(0, x)
    gelu        x Phi(x), with the distribution function Phi of the normal distribution
    gelu-tanh   x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, an approximation of gelu
    silu        x / (1 + e^-x), also called swish

Source: gelu hendrycks2016; silu elfwing2018.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


def check_activation(activation: str | Callable[[Tensor], Tensor]) -> None:
    """Raise ValueError unless the activation is one of these names, or a function."""
    if not callable(activation) and activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, or a function, got {activation!r}")


def activate(activation: str | Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the activation of x."""
    return ACTIVATIONS[activation](x) if isinstance(activation, str) else activation(x)
