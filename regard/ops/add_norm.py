"""Residual sum, dropout and layer norm in one pass over memory, for training on a CPU.

    add_dropout         x + dropout(f)
    add_dropout_norm    LayerNorm(x + dropout(f))

Neither the sum nor the dropout mask is stored; backward recomputes both.

Source: ba2016 (layer norm); srivastava2014 (dropout).
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard.ops.bfloat16 import is_bfloat16_autocast
from regard.ops.dispatch import native
from regard.ops.dropout import drop


def add_dropout(x: Tensor, f: Tensor, *, seed: int, threshold: int) -> Tensor:
    """Return x + dropout(f). The seed and the threshold are those of `regard.ops.dropout`."""
    return _AddDropout.apply(x, f, seed, threshold)


def add_dropout_norm(
    x: Tensor, f: Tensor, weight: Tensor, bias: Tensor, *, epsilon: float, seed: int, threshold: int
) -> tuple[Tensor, Tensor | None]:
    """Return LayerNorm(x + dropout(f)), and under bfloat16 autocast a bfloat16 copy of it. Threshold 0: no dropout."""
    return _AddDropoutNorm.apply(x, f, weight, bias, (epsilon, seed, threshold))


class _AddDropout(torch.autograd.Function):
    """x + dropout(f)."""

    @staticmethod
    def forward(ctx, x: Tensor, f: Tensor, seed: int, threshold: int) -> Tensor:
        loops = native("add_norm")
        ctx.dropout = seed, threshold, f.dtype
        return loops.add(x.contiguous(), f.contiguous(), seed, threshold)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        to_x, to_f = ctx.needs_input_grad[:2]
        return gradient if to_x else None, drop(gradient, *ctx.dropout) if to_f else None, None, None


class _AddDropoutNorm(torch.autograd.Function):
    """LayerNorm(x + dropout(f)), with a bfloat16 copy under bfloat16 autocast."""

    @staticmethod
    def forward(ctx, x: Tensor, f: Tensor, *norm: Any) -> tuple[Tensor, Tensor | None]:
        loops = native("add_norm")
        weight, bias, rest = norm
        x, f = x.contiguous(), f.contiguous()
        out, stats, rounded = loops.add_norm(x, f, weight, bias, *rest, with_bfloat16=is_bfloat16_autocast())
        ctx.rest = rest
        ctx.save_for_backward(x, f, weight, bias, stats)
        ctx.set_materialize_grads(False)
        return out, rounded

    @staticmethod
    def backward(ctx, gradient: Tensor | None, of_rounded: Tensor | None) -> tuple[Tensor | None, ...]:
        loops = native("add_norm")
        x, f, weight, bias, stats = ctx.saved_tensors
        epsilon, seed, threshold = ctx.rest
        if torch.is_grad_enabled():  # gradients of gradients: by torch's own operators
            gradient = _sum(gradient, of_rounded)
            # Views, since f usually depends on x: the gradient of x must not also flow through f.
            x, f, weight, bias = (t.view_as(t) for t in (x, f, weight, bias))
            out = nn.functional.layer_norm(
                x + drop(f, seed, threshold, torch.float32), weight.shape, weight, bias, epsilon
            )
            inputs = [t for t in (x, f, weight, bias) if t.requires_grad]
            of_inputs = iter(torch.autograd.grad(out, inputs, gradient, create_graph=True))
            gradients = tuple(next(of_inputs) if t.requires_grad else None for t in (x, f, weight, bias))
        else:
            of_outputs = _contiguous(gradient), _contiguous(of_rounded)
            gradients = loops.add_norm_gradients(of_outputs, x, f, weight, stats, seed, threshold)
        return *gradients, None


def _contiguous(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.contiguous()


def _sum(gradient: Tensor | None, of_rounded: Tensor | None) -> Tensor | None:
    if gradient is None or of_rounded is None:
        return gradient if of_rounded is None else of_rounded.float()
    return gradient + of_rounded
