"""Add & norm: what a part computes is added to what it was given, and the sum is normalised.

    post:  LayerNorm(x + dropout(f(x)))         the paper's order
    pre:   x + dropout(f(LayerNorm(x)))         easier to train when deep; the stack ends in a LayerNorm of its own

LayerNorm: mean 0 and variance 1 over the last axis (batch norm would be over the batch), then scale and shift.

Source: lectures, D; vaswani2017, section 3.1; pre: xiong2020.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from regard.layers.dropout import Dropout

__all__ = ["Residual"]


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
        """items with part(items) added and normalised."""
        if self.order == "pre":
            return items + self.dropout(part(self.norm(items)))
        return self.norm(items + self.dropout(part(items)))
