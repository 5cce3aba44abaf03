"""The softmax of many short rows on a CPU: torch's takes their numbers one by one, compiled loops many at a time.

p = exp(s - max s) / sum exp(s - max s)
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.axes import is_plain

_VECTOR = 64
"""Bytes of a row from which torch makes vectors of it; below, it takes 5 to 15 times as long as these loops."""
_WORTH = 1 << 14
"""Numbers from which a compiled loop is faster, what it costs to call it counted."""


def is_compiled_for(*tensors: Tensor) -> bool:
    """Whether the compiled loops take these: on a CPU, float32 or bfloat16, in no mapped or traced function."""
    return is_plain() and all(
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.dtype in (torch.float32, torch.bfloat16)
        and tensor.numel() > 0
        and tensor.dim() > 0
        for tensor in tensors
    )


def softmax(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """Each row's shares; scores of minus infinity have exactly none."""
    is_short = scores.shape[-1] * scores.element_size() < _VECTOR
    if is_short and scores.numel() >= _WORTH and is_compiled_for(scores):
        return _Softmax.apply(scores)
    return scores.softmax(-1)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor) -> Tensor:
        from regard.attention.kernels import rows_cpu  # noqa: PLC0415  # brings numba along, on first use

        out = rows_cpu.softmax(scores.contiguous())
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        from regard.attention.kernels import rows_cpu  # noqa: PLC0415

        (out,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of gradients: by torch's own operators
            return out * (gradient - (gradient * out).sum(-1, keepdim=True))
        return rows_cpu.softmax_gradient(gradient.contiguous(), out)
