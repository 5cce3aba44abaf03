"""Dropout whose random bits cost little.

    y_i = x_i / (1 - p) with probability 1 - p, else 0

On the CPU torch draws one number an element, on one thread; that is a seventh of the time of training a small
Transformer. Here one 64-bit draw serves four elements: each compares 16 bits with p, so p is kept to a multiple of
1/65536, and the scale is that of the p used. The bits come from torch's generator, so a seed fixes them.

Source: srivastava2014.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["Dropout"]

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """Zeroes a share p of the elements in training and scales the others up; the identity in evaluation.

    Raises: ValueError if p is not at least 0 and below 1.
    """

    def __init__(self, p: float):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout p must be at least 0 and below 1, but is {p}")
        self.p = p

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """x with a share p of its elements dropped (training), or x (evaluation)."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return nn.functional.dropout(x, self.p)  # there the random numbers are fused and cheap
        return _FewBits.apply(x, round(self.p * _LEVELS))

    def extra_repr(self) -> str:
        """p."""
        return f"p={self.p}"


class _FewBits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, threshold: int) -> Tensor:
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
        kept = bits >= threshold - _LEVELS // 2  # int16 is centred on zero
        ctx.scale = _LEVELS / (_LEVELS - threshold)
        ctx.save_for_backward(kept)
        return (x * kept).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return (gradient * kept).mul_(ctx.scale), None
