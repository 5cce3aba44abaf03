"""A linear map whose float32 products use the fastest CPU kernel available, forward and backward.

    y = f(x W^T + b)        dx = dz W        dW = dz^T x        db = sum over rows of dz        dz = dy f'(y)

torch multiplies float32 with MKL, which uses only half of the vector lanes of non-Intel processors. oneDNN, which torch
ships for its compiler, uses all of them and is twice as fast at the same precision. The choice depends only on the
processor and on the sizes, so that a resumed run computes what the uninterrupted run would have computed.

Everywhere else (other processors, devices and dtypes, autocast, compiled, mapped or traced functions, small products)
this is torch.nn.functional.linear.
"""

import functools
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.compat.torch import is_eager, is_forward_ad, onednn_operators
from regard.ops.bfloat16 import get_bfloat16

MIN_SIZE = 6 << 20
"""Number of multiplications from which a product with gradients is faster, call overhead included."""
_MIN_SIZE_NO_GRAD = 1 << 21
"""Number of multiplications from which a product without gradients is faster."""


def linear(
    x: Float[Tensor, "*batch in"],
    weight: Float[Tensor, "out in"],
    bias: Float[Tensor, " out"] | None = None,
    *,
    relu: bool = False,
) -> Float[Tensor, "*batch out"]:
    """Return x W^T + b, or its positive part if `relu`, by the faster kernel for these sizes on this machine."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if not uses_onednn(*tensors, min_size=MIN_SIZE if needs_grad else _MIN_SIZE_NO_GRAD):
        out = nn.functional.linear(get_bfloat16(x), weight, bias)
        return torch.relu(out) if relu else out
    return _Product.apply(x, weight, bias, relu) if needs_grad else _multiply(x, weight, bias, relu=relu)


def uses_onednn(x: Tensor, weight: Tensor, *others: Tensor, min_size: int | None = None) -> bool:
    """Return True if x W^T is computed by oneDNN, which depends on the machine and on the tensors' types and sizes."""
    min_size = MIN_SIZE if min_size is None else min_size
    if x.dtype != torch.float32 or x.device.type != "cpu" or x.numel() * weight.shape[0] < min_size:
        return False
    if (
        weight.dim() != 2
        or x.shape[-1] != weight.shape[1]
        or not (weight.is_contiguous() or weight.t().is_contiguous())
    ):
        return False
    is_plain = all(
        type(other) in (Tensor, nn.Parameter)
        and other.dtype == torch.float32
        and other.device.type == "cpu"
        and other.layout == torch.strided
        for other in (x, weight, *others)
    )
    return (
        is_plain and not torch.is_autocast_enabled("cpu") and is_eager() and not is_forward_ad() and is_onednn_faster()
    )


@functools.cache
def is_onednn_faster() -> bool:
    """Return True if oneDNN multiplies float32 faster than torch's default: with AVX-512 on non-Intel processors."""
    return (
        onednn_operators() is not None
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and _cpu_vendor() != "Intel"
    )


def _cpu_vendor() -> str:
    """Return the vendor of the processor: AMD, or Intel if unknown."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    return "AMD" if "AuthenticAMD" in cpuinfo else "Intel"


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor:
    operators = onednn_operators()
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
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # gradients of gradients use torch's operators
            return *_differentiable_gradients(gradient, x, weight, out, (needs_x, needs_weight, needs_bias)), None
        if ctx.relu:
            gradient = torch.ops.aten.threshold_backward(gradient, out, 0)
        rows = gradient.reshape(-1, weight.shape[0]).contiguous()
        grad_x = grad_weight = grad_bias = None
        if needs_weight:
            operators = onednn_operators()
            assert operators is not None
            items = x.reshape(-1, weight.shape[1]).to_mkldnn()
            grad_weight, grad_bias = operators[1](rows.to_mkldnn(), items, weight, needs_bias)
        elif needs_bias:
            grad_bias = rows.sum(0)
        if needs_x:
            grad_x = _multiply(rows, weight.t(), None).view(x.shape)
        return grad_x, grad_weight, grad_bias if needs_bias else None, None


def _differentiable_gradients(
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
