"""A linear map whose float32 products take the fastest kernel of the CPU at hand, forwards and backwards.

    y = f(x W^T + b)        dx = dz W        dW = dz^T x        db = sum over rows of dz        dz = dy f'(y)

torch multiplies float32 by MKL, which on processors that are not Intel's leaves half of their lanes unused. oneDNN,
which torch brings along for its compiler, uses all of them, and is twice as fast in the same precision. Where it pays
depends on the processor and on the sizes alone, so that a run that goes on computes what it would have computed.

Everywhere else (other processors and devices, other types, autocast, compiled, mapped or traced functions, small
products) this is torch.nn.functional.linear.
"""

import functools
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad

from regard.attention.axes import is_plain
from regard.attention.kernels.rounded import take

WORTH = 6 << 20
"""Multiplications from which a product with gradients is faster, what it costs to call it counted."""
_WORTH_ALONE = 1 << 21
"""The same for a product without gradients."""


def linear(
    x: Float[Tensor, "*batch in"],
    weight: Float[Tensor, "out in"],
    bias: Float[Tensor, " out"] | None = None,
    *,
    relu: bool = False,
) -> Float[Tensor, "*batch out"]:
    """x W^T + b, or its positive part if `relu`, by whichever kernel is faster for these sizes on this machine."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if not takes_fast_products(*tensors, worth=WORTH if learns else _WORTH_ALONE):
        out = nn.functional.linear(take(x), weight, bias)
        return torch.relu(out) if relu else out
    return _Product.apply(x, weight, bias, relu) if learns else _multiply(x, weight, bias, relu=relu)


def takes_fast_products(x: Tensor, weight: Tensor, *others: Tensor, worth: int | None = None) -> bool:
    """Whether x W^T is computed by oneDNN: a function of the machine and of the kinds and sizes of tensors."""
    worth = WORTH if worth is None else worth
    if x.dtype != torch.float32 or x.device.type != "cpu" or x.numel() * weight.shape[0] < worth:
        return False
    if (
        weight.dim() != 2
        or x.shape[-1] != weight.shape[1]
        or not (weight.is_contiguous() or weight.t().is_contiguous())
    ):
        return False
    ordinary = all(
        type(other) in (Tensor, nn.Parameter)
        and other.dtype == torch.float32
        and other.device.type == "cpu"
        and other.layout == torch.strided
        for other in (x, weight, *others)
    )
    differentiates_forwards = forward_ad._current_level >= 0
    return (
        ordinary
        and not torch.is_autocast_enabled("cpu")
        and is_plain()
        and not differentiates_forwards
        and has_fast_products()
    )


@functools.cache
def has_fast_products() -> bool:
    """Whether oneDNN multiplies float32 faster than what torch takes by itself: AVX-512 on a processor not of Intel."""
    return _operators() is not None and torch.backends.cpu.get_cpu_capability() == "AVX512" and _maker() != "Intel"


@functools.cache
def _operators() -> tuple[Any, Any] | None:
    """x W^T by oneDNN, and its gradients of weights and offsets; None where this torch has none."""
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        return torch.ops.mkldnn._linear_pointwise.default, torch.ops.aten.mkldnn_linear_backward_weights.default
    except (AttributeError, RuntimeError):
        return None


def _maker() -> str:
    """Who made the processor: AMD, or Intel where it is not known."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        told = ""
    return "AMD" if "AuthenticAMD" in told else "Intel"


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor:
    operators = _operators()
    assert operators is not None
    return operators[0](x, weight, bias, "relu" if relu else "none", [], "")


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        out = _multiply(x, weight, bias, relu=relu)
        ctx.relu = relu
        ctx.save_for_backward(x, weight, bias, out if relu else None)
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight, _, out = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # gradients of gradients: by torch's own operators
            return *_differentiable(gradient, x, weight, out, (of_x, of_weight, of_bias)), None
        if ctx.relu:
            gradient = torch.ops.aten.threshold_backward(gradient, out, 0)
        rows = gradient.reshape(-1, weight.shape[0]).contiguous()
        to_x = to_weight = to_bias = None
        if of_weight:
            operators = _operators()
            assert operators is not None
            items = x.reshape(-1, weight.shape[1]).to_mkldnn()
            to_weight, to_bias = operators[1](rows.to_mkldnn(), items, weight, of_bias)
        elif of_bias:
            to_bias = rows.sum(0)
        if of_x:
            to_x = _multiply(rows, weight.t(), None).view(x.shape)
        return to_x, to_weight, to_bias if of_bias else None, None


def _differentiable(
    gradient: Tensor, x: Tensor, weight: Tensor, out: Tensor | None, needs: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if out is not None:
        gradient = gradient * (out > 0)
    rows, items = gradient.flatten(0, -2), x.flatten(0, -2)
    return (
        gradient @ weight if needs[0] else None,
        rows.t() @ items if needs[1] else None,
        rows.sum(0) if needs[2] else None,
    )
