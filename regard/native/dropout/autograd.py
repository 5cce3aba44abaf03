"""Dropout, residual sum and layer norm with their gradients, by the loops beside this file.

Neither the sum nor the dropout mask is stored; backward recomputes both. Gradients of gradients are
torch's own.
"""

from typing import Any

import torch
from torch import Tensor, nn

from regard.native.dropout import loops
from regard.ops.linear import attach_bfloat16, is_bfloat16_autocast


def drop(x: Tensor, seed: int, threshold: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return x with the elements dropped that the seed selects, as `dtype`: float32 or bfloat16."""
    return _Drop.apply(x, seed, threshold, x.dtype if dtype is None else dtype)


def add_drop(x: Tensor, f: Tensor, seed: int, threshold: int) -> Tensor:
    """Return x + dropout(f)."""
    return _AddDropout.apply(x, f, seed, threshold)


def add_drop_norm(
    x: Tensor, f: Tensor, weight: Tensor, bias: Tensor, epsilon: float, seed: int, threshold: int
) -> Tensor:
    """Return LayerNorm(x + dropout(f)), with a bfloat16 copy under autocast; 0: no dropout."""
    out, rounded = _AddDropoutNorm.apply(x, f, weight, bias, (epsilon, seed, threshold))
    return out if rounded is None else attach_bfloat16(out, rounded)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, seed: int, threshold: int, dtype: torch.dtype) -> Tensor:
        ctx.arguments = seed, threshold, x.dtype
        return loops.drop(x.contiguous(), seed, threshold, dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return drop(gradient, *ctx.arguments), None, None, None


class _AddDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, f: Tensor, seed: int, threshold: int) -> Tensor:
        ctx.dropout = seed, threshold, f.dtype
        return loops.add(x.contiguous(), f.contiguous(), seed, threshold)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        to_x, to_f = ctx.needs_input_grad[:2]
        grad_f = drop(gradient, *ctx.dropout) if to_f else None
        return gradient if to_x else None, grad_f, None, None


class _AddDropoutNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, f: Tensor, *norm: Any) -> tuple[Tensor, Tensor | None]:
        weight, bias, rest = norm
        x, f, weight, bias = (t.contiguous() for t in (x, f, weight, bias))
        with_bfloat16 = is_bfloat16_autocast()
        out, stats, rounded = loops.add_norm(x, f, weight, bias, *rest, with_bfloat16=with_bfloat16)
        ctx.rest = rest
        ctx.save_for_backward(x, f, weight, bias, stats)
        ctx.set_materialize_grads(False)
        if rounded is not None:
            ctx.mark_non_differentiable(rounded)  # its gradient is one of `out`: attach_bfloat16
        return out, rounded

    @staticmethod
    def backward(ctx, gradient: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return (None,) * 5
        x, f, weight, bias, stats = ctx.saved_tensors
        epsilon, seed, threshold = ctx.rest
        if torch.is_grad_enabled():  # gradients of gradients: by torch's own operators
            # Views, since f usually depends on x: the gradient of x must not also flow through f.
            x, f, weight, bias = (t.view_as(t) for t in (x, f, weight, bias))
            tensors = x, f, weight, bias
            total = x + drop(f, seed, threshold, torch.float32)
            out = nn.functional.layer_norm(total, weight.shape, weight, bias, epsilon)
            inputs = [t for t in tensors if t.requires_grad]
            of_inputs = iter(torch.autograd.grad(out, inputs, gradient, create_graph=True))
            return *(next(of_inputs) if t.requires_grad else None for t in tensors), None
        gradient = gradient.contiguous()
        return *loops.add_norm_gradients(gradient, x, f, weight, stats, seed, threshold), None
