"""Add & norm: residual connection around a sublayer, with a norm.

    post:  norm(x + dropout(f(x)))         the paper's order
    pre:   x + dropout(f(norm(x)))         easier to train when deep; a final norm follows the stack
    none:  dropout(f(x))                   neither: a plain stack of layers

In training on a CPU, dropout, sum and LayerNorm are fused into one pass; the sum is not stored.

Source: lectures, D.5 (post), C.11 (none); vaswani2017, section 3.1; pre: xiong2020.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from regard.compat.torch import runs_original_forward
from regard.layers.dropout import Dropout
from regard.layers.forms import AddNormForm, NoFormError, NormForm, form_of
from regard.ops.dropout import add_dropout, add_dropout_norm


class Residual(nn.Module):
    """Add & norm around a function.

    norm: returns the norm of items of a given size: nn.LayerNorm, RMSNorm, or another one.
    Raises: ValueError if order is not post, pre or none.
    """

    def __init__(
        self,
        dim: int,
        *,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        order: str = "post",
        dropout: float = 0.0,
    ):
        super().__init__()
        if order not in ("post", "pre", "none"):
            raise ValueError(f"order must be post, pre or none, got {order!r}")
        self.order = order
        self.norm = nn.Identity() if order == "none" else norm(dim)
        self.dropout = Dropout(dropout)

    def forward(
        self, items: Float[Tensor, "*batch dim"], part: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "*batch dim"]:
        if self.order == "pre":
            return self._add(items, part(self.norm(items)))
        output = part(items)
        return self.dropout(output) if self.order == "none" else self._add_norm(items, output)

    def form(self) -> AddNormForm:
        if self.order == "none":
            raise NoFormError(self, "has order none, and only torch runs stacks without add & norm")
        return AddNormForm(self.order, form_of(self.norm, NormForm))

    def _add(self, items: Tensor, output: Tensor) -> Tensor:
        dropout = self.dropout
        if not runs_original_forward(Dropout, dropout):
            return items + dropout(output)
        return add_dropout(items, output, dropout.p, training=dropout.training)

    def _add_norm(self, items: Tensor, output: Tensor) -> Tensor:
        norm, dropout = self.norm, self.dropout
        if not (
            isinstance(norm, nn.LayerNorm)
            and norm.elementwise_affine
            and runs_original_forward(nn.LayerNorm, norm)
            and runs_original_forward(Dropout, dropout)
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
