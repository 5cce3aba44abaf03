"""Add & norm: residual connection around a sublayer, with layer normalization.

    post:  LayerNorm(x + dropout(f(x)))         the paper's order
    pre:   x + dropout(f(LayerNorm(x)))         easier to train when deep; a final LayerNorm follows the stack

LayerNorm: mean 0 and variance 1 over the last axis (batch norm would be over the batch), then scale and shift.

In training on a CPU, dropout, sum and norm are fused into one pass, and so are their gradients; the sum is not stored.

Source: lectures, D; vaswani2017, section 3.1; pre: xiong2020.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.compat.torch import runs_original_forward
from regard.layers.dropout import Dropout
from regard.layers.forms import AddNormForm, NormForm, form_of
from regard.ops.add_norm import add_dropout, add_dropout_norm
from regard.ops.bfloat16 import attach_bfloat16
from regard.ops.dropout import draw_seed, to_threshold
from regard.ops.softmax import is_supported


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
        if runs_original_forward(Dropout, self.dropout) and self.dropout.p > 0 and self._is_fused(items, output):
            return add_dropout(items, output, seed=draw_seed(), threshold=to_threshold(self.dropout.p))
        return items + self.dropout(output)

    def _add_norm(self, items: Tensor, output: Tensor) -> Tensor:
        norm = self.norm
        if not (
            runs_original_forward(nn.LayerNorm, norm)
            and runs_original_forward(Dropout, self.dropout)
            and norm.normalized_shape == items.shape[-1:]
            and norm.elementwise_affine
            and norm.bias is not None
            and self._is_fused(items, output, norm.weight, norm.bias)
        ):
            return norm(items + self.dropout(output))
        seed, threshold = (draw_seed(), to_threshold(self.dropout.p)) if self.dropout.p > 0 else (0, 0)
        out, rounded = add_dropout_norm(
            items, output, norm.weight, norm.bias, epsilon=norm.eps, seed=seed, threshold=threshold
        )
        return out if rounded is None else attach_bfloat16(out, rounded)

    def _is_fused(self, items: Tensor, output: Tensor, *weights: Tensor) -> bool:
        if not (self.training and torch.is_grad_enabled() and items.shape == output.shape):
            return False
        return is_supported(items, output, *weights) and all(x.dtype == torch.float32 for x in (items, *weights))
