"""Linear maps by oneDNN, forward and backward, where its float32 is faster than torch's default.

    y = f(x W^T + b)    dz = dy f'(y)    dx = dz W    dW = dz^T x    db = sum over rows of dz

torch multiplies float32 with MKL, which uses only half of the vector lanes of non-Intel processors.
oneDNN, which torch ships for its compiler, uses all of them and is twice as fast at the same
precision.
"""

import functools
from pathlib import Path

import torch
from torch import Tensor

from regard.compat.torch import onednn_operators


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """Return x W^T + b, or its positive part if `relu`."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _Product.apply(x, weight, bias, relu)
    return _multiply(x, weight, bias, relu=relu)


@functools.cache
def is_onednn_faster() -> bool:
    """Return True if oneDNN has the faster float32 product: AVX-512 on AMD processors."""
    if onednn_operators() is None or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text("utf-8", errors="replace")
    except OSError:
        return False


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
            if out is not None:
                gradient = gradient * (out > 0)
            rows, items = gradient.flatten(0, -2), x.flatten(0, -2)
            grad_x = gradient @ weight if needs_x else None
            grad_weight = rows.t() @ items if needs_weight else None
            return grad_x, grad_weight, rows.sum(0) if needs_bias else None, None
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
