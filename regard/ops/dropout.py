"""Dropout with cheap random bits on a CPU, alone, in a residual sum, and in add & norm.

    dropout             y_i = x_i / (1 - p) with probability 1 - p, else 0
    add_dropout         x + dropout(f)
    add_dropout_norm    LayerNorm(x + dropout(f))

On a CPU an element takes 16 random bits, so that p is rounded to a multiple of 1/65536, and the
scale is that of the rounded p. Compiled loops (regard.native.dropout) take the bits from a hash of
the element's index and of one draw of torch's generator: neither the sum nor the mask is stored,
and backward recomputes both. Otherwise the bits are those of the generator, and other elements are
dropped.

Source: srivastava2014; ba2016 (layer norm); steele2014 (the hash).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.ops.dispatch import native

LEVELS = 1 << 16
"""Number of values of 16 random bits."""


def dropout(x: Float[Tensor, "..."], p: float, *, training: bool) -> Float[Tensor, "..."]:
    """Return x with elements zeroed with probability p, the others scaled by 1 / (1 - p)."""
    if not training or p == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return nn.functional.dropout(x, p)  # fused, and cheap there
    implementation = native("dropout", x)
    if implementation is None:
        return _SixteenBitDropout.apply(x, to_threshold(p))
    return implementation.run(x, draw_seed(), to_threshold(p))


def add_dropout(
    x: Float[Tensor, "*batch dim"], f: Float[Tensor, "*batch dim"], p: float, *, training: bool
) -> Float[Tensor, "*batch dim"]:
    """Return x + dropout(f)."""
    implementation = native("add_dropout", x, f) if training and p > 0 else None
    if implementation is None:
        return x + dropout(f, p, training=training)
    return implementation.run(x, f, draw_seed(), to_threshold(p))


def add_dropout_norm(
    x: Float[Tensor, "*batch dim"],
    f: Float[Tensor, "*batch dim"],
    p: float,
    weight: Float[Tensor, " dim"],
    bias: Float[Tensor, " dim"] | None,
    *,
    epsilon: float,
    training: bool,
) -> Float[Tensor, "*batch dim"]:
    """Return LayerNorm(x + dropout(f)); a bfloat16 copy may be attached to it."""
    implementation = native("add_dropout_norm", x, f, weight, bias) if training else None
    if implementation is None:
        total = x + dropout(f, p, training=training)
        return nn.functional.layer_norm(total, weight.shape, weight, bias, epsilon)
    # Without dropout no seed is drawn, as in the plain form: what is drawn later stays the same.
    seed = draw_seed() if p > 0 else 0
    return implementation.run(x, f, weight, bias, epsilon, seed, to_threshold(p))


def draw_seed() -> int:
    """Draw a seed of 63 bits from torch's generator."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_())


def to_threshold(p: float) -> int:
    """Return round(65536 p), at most 65535."""
    return min(round(p * LEVELS), LEVELS - 1)


class _SixteenBitDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, threshold: int) -> Tensor:
        draws = x.new_empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
        mask = bits >= threshold - LEVELS // 2  # int16 is centered on zero
        ctx.scale = LEVELS / (LEVELS - threshold)
        ctx.save_for_backward(mask)
        return (x * mask).mul_(ctx.scale)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return (gradient * mask).mul_(ctx.scale), None
