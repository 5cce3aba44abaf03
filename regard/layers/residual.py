"""Add & norm: residual connection around a sublayer, with a norm.

    post:  norm(x + dropout(f(x)))         the paper's order
    pre:   x + dropout(f(norm(x)))         easier to train when deep; a final norm follows the stack
    none:  dropout(f(x))                   neither: a plain stack of layers

With layer scale, f(x) is multiplied by a learned factor for each of its numbers.
In training on a CPU, dropout, sum and LayerNorm are fused into one pass; the sum is not stored.

Source: lectures, D.5 (post), C.11 (none); vaswani2017, section 3.1; pre: xiong2020; layer
        scale touvron2021.
"""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.compat.torch import runs_original_forward
from regard.layers.dropout import Dropout
from regard.layers.forms import AddNormForm, NoFormError, NormForm, form_of
from regard.ops.dropout import add_dropout, add_dropout_norm


class Residual(nn.Module):
    """Add & norm around a function.

    norm: returns the norm of items of a given size: nn.LayerNorm, RMSNorm, or another one.
    layer_scale: initial factors of the function's output; None: no factors.
    """

    def __init__(
        self,
        dim: int,
        *,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        order: Literal["post", "pre", "none"] = "post",
        layer_scale: float | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.order = order
        self.norm = nn.Identity() if order == "none" else norm(dim)
        self.scale = None
        if layer_scale is not None:
            self.scale = nn.Parameter(torch.full((dim,), layer_scale))
        self.dropout = Dropout(dropout)

    def forward(
        self, items: Float[Tensor, "*batch dim"], part: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*batch dim"]:
        norm, dropout = self.norm, self.dropout
        has_dropout = runs_original_forward(Dropout, dropout)
        output = part(norm(items) if self.order == "pre" else items)
        if output.shape != items.shape:
            sizes = f"{tuple(items.shape)}, got {tuple(output.shape)}"
            raise ValueError(f"attention and feedforward must keep the shape of items, {sizes}")
        if self.scale is not None:
            output = output * self.scale
        if self.order == "pre":
            if not has_dropout:
                return items + dropout(output)
            return add_dropout(items, output, dropout.p, training=dropout.training)
        if self.order == "none":
            return dropout(output)
        if not (
            has_dropout
            and isinstance(norm, nn.LayerNorm)
            and norm.elementwise_affine
            and runs_original_forward(nn.LayerNorm, norm)
        ):
            return norm(items + dropout(output))
        return add_dropout_norm(
            items,
            output,
            dropout.p,
            norm.weight,
            norm.bias,
            epsilon=norm.eps,
            training=dropout.training,
        )

    def form(self) -> AddNormForm:
        if self.order == "none":
            raise NoFormError(self, "has order none, and only torch runs stacks without add & norm")
        if self.scale is not None:
            raise NoFormError(self, "has a layer scale, which only torch runs")
        return AddNormForm(self.order, form_of(self.norm, NormForm))
