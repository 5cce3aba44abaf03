"""Dropout with cheap random bits, seeded by a single draw of torch's generator.

    y_i = x_i / (1 - p) with probability 1 - p, else 0

Each element compares 16 bits of a hash of its position with p, so p is rounded to a multiple of 1/65536.

Source: srivastava2014; steele2014 (the hash).
"""

import torch
from torch import Tensor

from regard.ops.dispatch import native

_LEVELS = 1 << 16


def draw_seed() -> int:
    """Draw a seed of 63 bits from torch's generator."""
    return int(torch.empty((), dtype=torch.int64).random_())


def to_threshold(p: float) -> int:
    """Return round(65536 p), at most 65535."""
    return min(round(p * _LEVELS), _LEVELS - 1)


def drop(x: Tensor, seed: int, threshold: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return x with the elements dropped that the seed selects, as `dtype`: float32 or bfloat16."""
    return _Drop.apply(x, seed, threshold, x.dtype if dtype is None else dtype)


def drop_sixteen_bits(x: Tensor, threshold: int) -> Tensor:
    """Return x with elements dropped by 16 random bits each from torch's generator, where no compiled loop runs."""
    return _SixteenBitDropout.apply(x, threshold)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, seed: int, threshold: int, dtype: torch.dtype) -> Tensor:
        loops = native("add_norm")
        ctx.arguments = seed, threshold, x.dtype
        return loops.drop(x.contiguous(), seed, threshold, dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return drop(gradient, *ctx.arguments), None, None, None


class _SixteenBitDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, threshold: int) -> Tensor:
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
        mask = bits >= threshold - _LEVELS // 2  # int16 is centered on zero
        ctx.scale = _LEVELS / (_LEVELS - threshold)
        ctx.save_for_backward(mask)
        return (x * mask).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return (gradient * mask).mul_(ctx.scale), None
