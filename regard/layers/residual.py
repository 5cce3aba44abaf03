"""Add & norm: residual connection around a sublayer, with layer normalization.

    post:  LayerNorm(x + dropout(f(x)))         the paper's order
    pre:   x + dropout(f(LayerNorm(x)))         easier to train when deep; a final LayerNorm follows the stack

LayerNorm: mean 0 and variance 1 over the last axis (batch norm would be over the batch), then scale and shift.

In training on a CPU, dropout, sum and norm are fused into one pass, and so are their gradients; the sum is not stored.

Source: lectures, D; vaswani2017, section 3.1; pre: xiong2020.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.kernels.rounded import attach_bfloat16, is_bfloat16_autocast
from regard.attention.kernels.rows import is_supported
from regard.layers.dropout import Dropout, draw_seed, drop, to_threshold
from regard.layers.forms import AddNormForm, NormForm, form_of
from regard.layers.linear import is_exact


class Residual(nn.Module):
    """Add & norm around a function. Raises ValueError if order is not post or pre."""

    def __init__(self, dim: int, *, order: str = "post", dropout: float = 0.0):
        super().__init__()
        if order not in ("post", "pre"):
            raise ValueError(f"order must be post or pre, got {order!r}")
        self.order = order
        self.norm = nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)

    def forward(
        self, items: Float[Tensor, "*batch dim"], part: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*batch dim"]:
        """Return the items after add & norm around `part`."""
        if self.order == "pre":
            return self._add(items, part(self.norm(items)))
        return self._add_norm(items, part(items))

    def form(self) -> AddNormForm:
        """Return the form of this module in evaluation (regard.layers.forms)."""
        return AddNormForm(self.order, form_of(self.norm, NormForm))

    def _add(self, items: Tensor, output: Tensor) -> Tensor:
        if is_exact(Dropout, self.dropout) and self.dropout.p > 0 and self._is_fused(items, output):
            return _Add.apply(items, output, draw_seed(), to_threshold(self.dropout.p))
        return items + self.dropout(output)

    def _add_norm(self, items: Tensor, output: Tensor) -> Tensor:
        norm = self.norm
        if not (
            is_exact(nn.LayerNorm, norm)
            and is_exact(Dropout, self.dropout)
            and norm.normalized_shape == items.shape[-1:]
            and norm.elementwise_affine
            and norm.bias is not None
            and self._is_fused(items, output, norm.weight, norm.bias)
        ):
            return norm(items + self.dropout(output))
        dropout = (draw_seed(), to_threshold(self.dropout.p)) if self.dropout.p > 0 else (0, 0)
        out, rounded = _AddNorm.apply(items, output, norm.weight, norm.bias, (norm.eps, *dropout))
        return out if rounded is None else attach_bfloat16(out, rounded)

    def _is_fused(self, items: Tensor, output: Tensor, *weights: Tensor) -> bool:
        if not (self.training and torch.is_grad_enabled() and items.shape == output.shape):
            return False
        return is_supported(items, output, *weights) and all(x.dtype == torch.float32 for x in (items, *weights))


class _Add(torch.autograd.Function):
    """x + dropout(f)."""

    @staticmethod
    def forward(ctx, x: Tensor, f: Tensor, seed: int, threshold: int) -> Tensor:
        from regard.layers import residual_cpu  # noqa: PLC0415  # brings numba along, on first use

        ctx.dropout = seed, threshold, f.dtype
        return residual_cpu.add(x.contiguous(), f.contiguous(), seed, threshold)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        to_x, to_f = ctx.needs_input_grad[:2]
        return gradient if to_x else None, drop(gradient, *ctx.dropout) if to_f else None, None, None


class _AddNorm(torch.autograd.Function):
    """LayerNorm(x + dropout(f)), with a bfloat16 copy under bfloat16 autocast."""

    @staticmethod
    def forward(ctx, x: Tensor, f: Tensor, *norm: Any) -> tuple[Tensor, Tensor | None]:
        from regard.layers import residual_cpu  # noqa: PLC0415  # brings numba along, on first use

        weight, bias, rest = norm
        x, f = x.contiguous(), f.contiguous()
        out, stats, rounded = residual_cpu.add_norm(x, f, weight, bias, *rest, with_bfloat16=is_bfloat16_autocast())
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
            gradients = residual_cpu.add_norm_gradients(of_outputs, x, f, weight, stats, seed, threshold)
        return *gradients, None


def _contiguous(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.contiguous()


def _sum(gradient: Tensor | None, of_rounded: Tensor | None) -> Tensor | None:
    if gradient is None or of_rounded is None:
        return gradient if of_rounded is None else of_rounded.float()
    return gradient + of_rounded
