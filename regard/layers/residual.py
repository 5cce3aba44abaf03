"""Add & norm: what a part computes is added to what it was given, and the sum is normalized.

    post:  LayerNorm(x + dropout(f(x)))         the paper's order
    pre:   x + dropout(f(LayerNorm(x)))         easier to train when deep; the stack ends in a LayerNorm of its own

LayerNorm: mean 0 and variance 1 over the last axis (batch norm would be over the batch), then scale and shift.

In training on a CPU dropout, sum and norm are one pass over memory, and so are their gradients; the sum is not kept.

Source: lectures, D; vaswani2017, section 3.1; pre: xiong2020.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.kernels.rounded import hand_on, is_wanted
from regard.attention.kernels.rows import is_compiled_for
from regard.layers.dropout import Dropout, draw_seed, drop, levels
from regard.layers.forms import AddNormForm, NormForm, form_of
from regard.layers.linear import is_exact


class Residual(nn.Module):
    """One add & norm around whatever function it is called with. Raises ValueError for an unknown order."""

    def __init__(self, dim: int, *, order: str = "post", dropout: float = 0.0):
        super().__init__()
        if order not in ("post", "pre"):
            raise ValueError(f"order must be post or pre, but is {order!r}")
        self.order = order
        self.norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(
        self, items: Float[Tensor, "*batch dim"], part: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*batch dim"]:
        """items with part(items) added and normalized."""
        if self.order == "pre":
            return self._add(items, part(self.norm(items)))
        return self._add_norm(items, part(items))

    def form(self) -> AddNormForm:
        """What it is in evaluation, as data."""
        return AddNormForm(self.order, form_of(self.norm, NormForm))

    def _add(self, items: Tensor, made: Tensor) -> Tensor:
        if is_exact(Dropout, self.dropout) and self.dropout.p > 0 and self._is_one_pass(items, made):
            return _Add.apply(items, made, draw_seed(), levels(self.dropout.p))
        return items + self.dropout(made)

    def _add_norm(self, items: Tensor, made: Tensor) -> Tensor:
        norm = self.norm
        if not (
            is_exact(nn.LayerNorm, norm)
            and is_exact(Dropout, self.dropout)
            and norm.normalized_shape == items.shape[-1:]
            and norm.elementwise_affine
            and norm.bias is not None
            and self._is_one_pass(items, made, norm.weight, norm.bias)
        ):
            return norm(items + self.dropout(made))
        drawn = (draw_seed(), levels(self.dropout.p)) if self.dropout.p > 0 else (0, 0)
        out, rounded = _AddNorm.apply(items, made, norm.weight, norm.bias, (norm.eps, *drawn))
        return out if rounded is None else hand_on(out, rounded)

    def _is_one_pass(self, items: Tensor, made: Tensor, *weights: Tensor) -> bool:
        if not (self.training and torch.is_grad_enabled() and items.shape == made.shape):
            return False
        return is_compiled_for(items, made, *weights) and all(x.dtype == torch.float32 for x in (items, *weights))


class _Add(torch.autograd.Function):
    """x + dropout(f)."""

    @staticmethod
    def forward(ctx, x: Tensor, f: Tensor, seed: int, threshold: int) -> Tensor:
        from regard.layers import residual_cpu  # noqa: PLC0415  # brings numba along, on first use

        ctx.drawn = seed, threshold, f.dtype
        return residual_cpu.add(x.contiguous(), f.contiguous(), seed, threshold)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        to_x, to_f = ctx.needs_input_grad[:2]
        return gradient if to_x else None, drop(gradient, *ctx.drawn) if to_f else None, None, None


class _AddNorm(torch.autograd.Function):
    """LayerNorm(x + dropout(f)), and the same in bfloat16 where products will want it."""

    @staticmethod
    def forward(ctx, x: Tensor, f: Tensor, *norm: Any) -> tuple[Tensor, Tensor | None]:
        from regard.layers import residual_cpu  # noqa: PLC0415  # brings numba along, on first use

        weight, bias, rest = norm
        x, f = x.contiguous(), f.contiguous()
        out, stats, rounded = residual_cpu.add_norm(x, f, weight, bias, *rest, rounds=is_wanted())
        ctx.rest = rest
        ctx.save_for_backward(x, f, weight, bias, stats)
        ctx.set_materialize_grads(False)
        return out, rounded

    @staticmethod
    def backward(ctx, gradient: Tensor | None, of_rounded: Tensor | None) -> tuple[Tensor | None, ...]:
        from regard.layers import residual_cpu  # noqa: PLC0415

        x, f, weight, bias, stats = ctx.saved_tensors
        epsilon, seed, threshold = ctx.rest
        if torch.is_grad_enabled():  # gradients of gradients: by torch's own operators
            gradient = _sum(gradient, of_rounded)
            # Views, for f is mostly made of x: the gradient of x is not to come by way of f, too.
            x, f, weight, bias = (t.view_as(t) for t in (x, f, weight, bias))
            out = nn.functional.layer_norm(
                x + drop(f, seed, threshold, torch.float32), weight.shape, weight, bias, epsilon
            )
            inputs = [t for t in (x, f, weight, bias) if t.requires_grad]
            found = iter(torch.autograd.grad(out, inputs, gradient, create_graph=True))
            gradients = tuple(next(found) if t.requires_grad else None for t in (x, f, weight, bias))
        else:
            given = _contiguous(gradient), _contiguous(of_rounded)
            gradients = residual_cpu.add_norm_gradients(given, x, f, weight, stats, seed, threshold)
        return *gradients, None


def _contiguous(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.contiguous()


def _sum(gradient: Tensor | None, of_rounded: Tensor | None) -> Tensor | None:
    if gradient is None or of_rounded is None:
        return gradient if of_rounded is None else of_rounded.float()
    return gradient + of_rounded
