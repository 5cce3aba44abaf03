"""Position-wise feed-forward network: the same two layers at every position.

    FFN(x) = W_2 f(W_1 x + b_1) + b_2

Equal to two 1x1 convolutions over time.

Source: lectures, D; vaswani2017, section 3.3.
"""

from jaxtyping import Float
from torch import Tensor, nn

from regard.compat.torch import runs_original_forward
from regard.layers.forms import FeedForwardForm, LinearForm, form_of
from regard.layers.linear import Linear
from regard.ops.linear import linear

_ACTIVATIONS = {"relu": nn.functional.relu, "gelu": nn.functional.gelu}


class FeedForward(nn.Module):
    """Feed-forward network dim -> hidden -> dim. Raises ValueError if activation is not relu or gelu."""

    def __init__(self, dim: int, hidden: int, *, activation: str = "relu"):
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(_ACTIVATIONS)}, got {activation!r}")
        self.expand = Linear(dim, hidden)
        self.contract = Linear(hidden, dim)
        self.activation = activation

    def forward(self, items: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Return FFN(x) for every item x."""
        if self.activation == "relu" and runs_original_forward(Linear, self.expand):
            return self.contract(linear(items, self.expand.weight, self.expand.bias, relu=True))
        return self.contract(_ACTIVATIONS[self.activation](self.expand(items)))

    def form(self) -> FeedForwardForm:
        """Return the form of this module (regard.layers.forms)."""
        return FeedForwardForm(form_of(self.expand, LinearForm), form_of(self.contract, LinearForm), self.activation)
