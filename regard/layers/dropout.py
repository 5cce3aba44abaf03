"""Dropout whose random bits cost little.

    y_i = x_i / (1 - p) with probability 1 - p, else 0

On the CPU torch draws one number an element, on one thread; that is a seventh of the time of training a small
Transformer. Here a single draw of torch's generator seeds a compiled loop, in which each element compares 16 bits of a
hash of its place with p: p is kept to a multiple of 1/65536, and the scale is that of the p used. So a seed fixes them,
for any number of threads, and the gradient draws the same bits again instead of keeping them.

Source: srivastava2014; steele2014 (the hash).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.kernels.rows import is_compiled_for

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
        if is_compiled_for(x):
            return drop(x, draw_seed(), levels(self.p))
        return _FewBits.apply(x, levels(self.p))

    def extra_repr(self) -> str:
        """p."""
        return f"p={self.p}"


def draw_seed() -> int:
    """A seed of 63 bits from torch's generator."""
    return int(torch.empty((), dtype=torch.int64).random_())


def levels(p: float) -> int:
    """p in shares of 1/65536, of which one at least is kept."""
    return min(round(p * _LEVELS), _LEVELS - 1)


def drop(x: Tensor, seed: int, threshold: int, dtype: torch.dtype | None = None) -> Tensor:
    """x with the elements dropped that the seed says, as `dtype`: float32 or bfloat16."""
    return _Drop.apply(x, seed, threshold, x.dtype if dtype is None else dtype)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, seed: int, threshold: int, dtype: torch.dtype) -> Tensor:
        from regard.layers import residual_cpu  # noqa: PLC0415  # brings numba along, on first use

        ctx.drawn = seed, threshold, x.dtype
        return residual_cpu.drop(x.contiguous(), seed, threshold, dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return drop(gradient, *ctx.drawn), None, None, None


class _FewBits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, threshold: int) -> Tensor:
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
        kept = bits >= threshold - _LEVELS // 2  # int16 is centered on zero
        ctx.scale = _LEVELS / (_LEVELS - threshold)
        ctx.save_for_backward(kept)
        return (x * kept).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return (gradient * kept).mul_(ctx.scale), None
