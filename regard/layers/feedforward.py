"""Position-wise feed-forward: the same two layers at every position.

    FFN(x) = W_2 f(W_1 x + b_1) + b_2

The same as reshaping (batch, time, d) to (batch * time, d), two layers, and back; the same as two 1x1 convolutions.

Source: lectures, D; vaswani2017, section 3.3.
"""

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.kernels.maps import linear
from regard.layers.forms import FeedForwardForm, LinearForm, form_of
from regard.layers.linear import Linear, is_exact

_ACTIVATIONS = {"relu": nn.functional.relu, "gelu": nn.functional.gelu}


class FeedForward(nn.Module):
    """dim -> hidden -> dim at every position. Raises ValueError for an activation it does not know."""

    def __init__(self, dim: int, hidden: int, *, activation: str = "relu"):
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(_ACTIVATIONS)}, but is {activation!r}")
        self.expand = Linear(dim, hidden)
        self.contract = Linear(hidden, dim)
        self.activation = activation

    def forward(self, items: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """FFN of every item."""
        if self.activation == "relu" and is_exact(Linear, self.expand):
            return self.contract(linear(items, self.expand.weight, self.expand.bias, relu=True))
        return self.contract(_ACTIVATIONS[self.activation](self.expand(items)))

    def form(self) -> FeedForwardForm:
        """What it is, as data."""
        return FeedForwardForm(form_of(self.expand, LinearForm), form_of(self.contract, LinearForm), self.activation)
