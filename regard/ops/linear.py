"""Linear maps, one or several of the same items, by the fastest float32 products of the CPU.

    y = f(x W^T + b)

oneDNN multiplies float32 faster than torch's default on some processors (regard.native.linear).
Everywhere else (other processors, devices and dtypes, autocast, compiled, mapped or traced
functions, small products) this is torch.nn.functional.linear.

Under autocast every product takes its inputs in bfloat16. An operation that can round its result on
the fly attaches the bfloat16 copy to it, and products use the copy. This saves a pass over memory
for rounding, and two in backward, where the gradient of the copy is added as the gradient of the
tensor is read. Results are the same as without; gradients of a tensor that several products use
(the encoder output, by each block of the decoder) are summed in bfloat16 instead of float32.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.compat.torch import is_eager, version_of
from regard.ops.dispatch import native

_ATTRIBUTE = "_regard_rounded"
MIN_COMPILED = 1 << 21
"""Number of multiplications from which a product may be faster by oneDNN."""
_MIN_FUSED_SIZE = 6 << 20
"""Number of multiplications from which one product of several maps is faster than one of each."""


def linear(
    x: Float[Tensor, "*batch in"],
    weight: Float[Tensor, "out in"],
    bias: Float[Tensor, " out"] | None = None,
    *,
    relu: bool = False,
) -> Float[Tensor, "*batch out"]:
    """Return x W^T + b, or its positive part if `relu`."""
    if not torch.compiler.is_compiling() and x.numel() * weight.shape[0] >= MIN_COMPILED:
        implementation = native("linear", x, weight, bias)
        if implementation is not None:
            return implementation.run(x, weight, bias, relu=relu)
    if torch.is_autocast_enabled("cpu"):
        x = get_bfloat16(x)
    out = nn.functional.linear(x, weight, bias)
    return torch.relu(out) if relu else out


def linears(
    x: Float[Tensor, "*batch in"],
    weights: Sequence[Float[Tensor, "_ in"]],
    biases: Sequence[Float[Tensor, " _"] | None],
) -> tuple[Float[Tensor, "*batch _"], ...]:
    """Return x W^T + b for each weight and bias; in training on a CPU, by one large product."""
    sizes, outs = [], []
    for weight in weights:
        sizes.append(weight.shape[0])
    is_large = x.device.type == "cpu" and x.numel() * sum(sizes) >= _MIN_FUSED_SIZE
    if is_large and torch.is_grad_enabled() and is_eager():
        added = [bias for bias in biases if bias is not None]
        has_parameters = all(type(weight) is nn.Parameter for weight in weights)
        if has_parameters and len(added) in (0, len(biases)):
            bias = torch.cat(added) if added else None
            return linear(x, torch.cat(list(weights)), bias).split(sizes, -1)
    for weight, bias in zip(weights, biases, strict=True):
        outs.append(linear(x, weight, bias))
    return tuple(outs)


def is_bfloat16_autocast() -> bool:
    """Return True if CPU products are currently computed in bfloat16 (autocast)."""
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


def attach_bfloat16(x: Tensor, rounded: Tensor) -> Tensor:
    """Attach the bfloat16 copy `rounded` to x, valid until x is modified, and return x."""
    if not x.is_inference():  # inference tensors have no version counter
        setattr(x, _ATTRIBUTE, (rounded, version_of(x)))
    return x


def get_bfloat16(x: Tensor) -> Tensor:
    """Return the bfloat16 copy attached to x if autocast would round x, else x."""
    attached = getattr(x, _ATTRIBUTE, None)
    if attached is None or not is_bfloat16_autocast():
        return x
    rounded, version = attached
    return rounded if version == version_of(x) else x
