"""Dropout with cheap random bits on the CPU.

    y_i = x_i / (1 - p) with probability 1 - p, else 0

On the CPU torch draws one number per element, on one thread, which is a seventh of the training time of a small
Transformer. Here a single draw of torch's generator seeds a compiled loop, which compares 16 bits of a hash of each
element's index with p: p is rounded to a multiple of 1/65536, and the scale is that of the rounded p. The result
depends on the seed alone, for any number of threads, and the backward pass recomputes the bits instead of storing them.

Source: srivastava2014; steele2014 (the hash).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.kernels.rows import is_supported

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """Dropout with probability p in training; the identity in evaluation.

    Raises: ValueError if p is not in [0, 1).
    """

    def __init__(self, p: float):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout p must be at least 0 and below 1, got {p}")
        self.p = p

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Return x with elements zeroed and the others scaled by 1 / (1 - p) (training), or x (evaluation)."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return nn.functional.dropout(x, self.p)  # fused, and cheap there
        if is_supported(x):
            return drop(x, draw_seed(), to_threshold(self.p))
        return _SixteenBitDropout.apply(x, to_threshold(self.p))

    def extra_repr(self) -> str:
        """Return p, for repr."""
        return f"p={self.p}"


def draw_seed() -> int:
    """Draw a seed of 63 bits from torch's generator."""
    return int(torch.empty((), dtype=torch.int64).random_())


def to_threshold(p: float) -> int:
    """Return round(65536 p), at most 65535."""
    return min(round(p * _LEVELS), _LEVELS - 1)


def drop(x: Tensor, seed: int, threshold: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return x with the elements dropped that the seed selects, as `dtype`: float32 or bfloat16."""
    return _Drop.apply(x, seed, threshold, x.dtype if dtype is None else dtype)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, seed: int, threshold: int, dtype: torch.dtype) -> Tensor:
        from regard.layers import residual_cpu  # noqa: PLC0415  # brings numba along, on first use

        ctx.arguments = seed, threshold, x.dtype
        return residual_cpu.drop(x.contiguous(), seed, threshold, dtype)

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
