"""Softmax of many short rows on a CPU by compiled loops, which vectorize across rows; torch's does not.

    p = exp(s - max s) / sum exp(s - max s)

Other softmaxes are torch's own.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.compat.torch import is_eager
from regard.ops.dispatch import native

_VECTOR = 64
"""Bytes of a row from which torch vectorizes it; below, torch takes 5 to 15 times as long as these loops."""
_MIN_SIZE = 1 << 14
"""Number of elements from which a compiled loop is faster, call overhead included."""


def is_supported(*tensors: Tensor) -> bool:
    """Return True if the compiled loops support these: CPU, float32 or bfloat16, outside vmap and tracing."""
    return is_eager() and all(
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.dtype in (torch.float32, torch.bfloat16)
        and tensor.numel() > 0
        and tensor.dim() > 0
        for tensor in tensors
    )


def softmax(scores: Float[Tensor, "*rows key"]) -> Float[Tensor, "*rows key"]:
    """Return the softmax of each row; scores of minus infinity have weight exactly 0."""
    is_short = scores.shape[-1] * scores.element_size() < _VECTOR
    if is_short and scores.numel() >= _MIN_SIZE and is_supported(scores):
        return _Softmax.apply(scores)
    return scores.softmax(-1)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores: Tensor) -> Tensor:
        loops = native("rows")
        out = loops.softmax(scores.contiguous())
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        loops = native("rows")
        (out,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of gradients use torch's operators
            return out * (gradient - (gradient * out).sum(-1, keepdim=True))
        return loops.softmax_gradient(gradient.contiguous(), out)
