"""Linear maps, one or several of the same items, by the fastest float32 products of the CPU.

    y = f(x W^T + b)

oneDNN multiplies float32 faster than torch's default on some processors (regard.native.linear).
Everywhere else (other processors, devices and dtypes, autocast, compiled, mapped or traced
functions, small products) this is torch.nn.functional.linear.

Under autocast every product takes its inputs in bfloat16. An operation that can round its result on
the fly attaches the bfloat16 copy to it, and products use the copy. This saves a pass over memory
for each product. The copy is a function of the tensor, whose gradient is complete. Results are the
same as without; gradients of a tensor that several products use (the encoder output, by each block
of the decoder) are summed in bfloat16 instead of float32.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.compat.torch import version_of
from regard.ops.dispatch import native

_ATTRIBUTE = "_regard_rounded"
MIN_COMPILED = 1 << 21
"""Number of multiplications from which a product may be faster by oneDNN."""
_MIN_ROW = 1 << 19
"""The same for a single row, as in decoding."""


def linear(
    x: Float[Tensor, "*batch in"],
    weight: Float[Tensor, "out in"],
    bias: Float[Tensor, " out"] | None = None,
    *,
    relu: bool = False,
) -> Float[Tensor, "*batch out"]:
    """Return x W^T + b, or its positive part if `relu`."""
    if not torch.compiler.is_compiling() and may_be_compiled(x, weight):
        implementation = native("linear", x, weight, bias)
        if implementation is not None:
            return implementation.run(x, weight, bias, relu=relu)
    if torch.is_autocast_enabled("cpu"):
        x = get_bfloat16(x)
    out = nn.functional.linear(x, weight, bias)
    return torch.relu(out) if relu else out


def may_be_compiled(x: Tensor, weight: Tensor) -> bool:
    """Return True if x W^T is large enough to be faster by oneDNN."""
    size = x.numel() * weight.shape[0]
    return size >= MIN_COMPILED or (size >= _MIN_ROW and size == weight.numel())


def is_bfloat16_autocast() -> bool:
    """Return True if CPU products are currently computed in bfloat16 (autocast)."""
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


def attach_bfloat16(x: Tensor, rounded: Tensor) -> Tensor:
    """Attach the bfloat16 copy `rounded` to x, valid until x is modified, and return x."""
    if not x.is_inference():  # inference tensors have no version counter
        setattr(x, _ATTRIBUTE, (_Rounded.apply(x, rounded), version_of(x)))
    return x


def get_bfloat16(x: Tensor) -> Tensor:
    """Return the bfloat16 copy attached to x if autocast would round x, else x."""
    attached = getattr(x, _ATTRIBUTE, None)
    if attached is None or not is_bfloat16_autocast():
        return x
    rounded, version = attached
    return rounded if version == version_of(x) else x


class _Rounded(torch.autograd.Function):
    """The copy `rounded` of x, with the gradient of x.bfloat16()."""

    @staticmethod
    def forward(ctx, x: Tensor, rounded: Tensor) -> Tensor:
        return rounded

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.float(), None
