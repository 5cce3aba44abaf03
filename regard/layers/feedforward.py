"""Position-wise feed-forward networks: the same layers at every position.

    FFN(x)      = W_2 f(W_1 x + b_1) + b_2
    gated       = W_2 (f(W_g x + b_g) * (W_1 x + b_1)) + b_2       SwiGLU: f = silu;  GeGLU: f = gelu

The first is equal to two 1x1 convolutions over time. Gates are usually used without biases, and with two thirds of the
hidden size, for as many parameters.

Source: lectures, D; vaswani2017, section 3.3; gated shazeer2020.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from regard.compat.torch import runs_original_forward
from regard.layers.activations import activate, check_activation
from regard.layers.forms import FeedForwardForm, LinearForm, NoFormError, form_of
from regard.layers.linear import Linear, fused_linear
from regard.ops.linear import linear


class FeedForward(nn.Module):
    """Feed-forward network dim -> hidden -> dim.

    activation: relu, gelu, gelu-tanh, silu, or a function (or module). Raises: ValueError for another name.
    """

    def __init__(
        self, dim: int, hidden: int, *, activation: str | Callable[[Tensor], Tensor] = "relu", bias: bool = True
    ):
        super().__init__()
        check_activation(activation)
        self.expand = Linear(dim, hidden, bias=bias)
        self.contract = Linear(hidden, dim, bias=bias)
        self.activation = activation

    def forward(self, items: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Return FFN(x) for every item x."""
        if self.activation == "relu" and runs_original_forward(Linear, self.expand):
            return self.contract(linear(items, self.expand.weight, self.expand.bias, relu=True))
        return self.contract(activate(self.activation, self.expand(items)))

    def form(self) -> FeedForwardForm:
        """Return the form of this module (regard.layers.forms).

        Raises: NoFormError if the activation is a function.
        """
        return _form(self, None)


class GatedFeedForward(nn.Module):
    """Gated feed-forward network dim -> hidden -> dim, with the gate f(W_g x): SwiGLU, or GeGLU with activation gelu.

    activation: as in FeedForward. Raises: ValueError for an unknown name.
    """

    def __init__(
        self, dim: int, hidden: int, *, activation: str | Callable[[Tensor], Tensor] = "silu", bias: bool = False
    ):
        super().__init__()
        check_activation(activation)
        self.gate = Linear(dim, hidden, bias=bias)
        self.expand = Linear(dim, hidden, bias=bias)
        self.contract = Linear(hidden, dim, bias=bias)
        self.activation = activation

    def forward(self, items: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Return W_2 (f(W_g x) * W_1 x) for every item x."""
        gate, expanded = fused_linear(items, self.gate, self.expand)
        return self.contract(activate(self.activation, gate) * expanded)

    def form(self) -> FeedForwardForm:
        """Return the form of this module (regard.layers.forms).

        Raises: NoFormError if the activation is a function.
        """
        return _form(self, form_of(self.gate, LinearForm))


def _form(part: FeedForward | GatedFeedForward, gate: LinearForm | None) -> FeedForwardForm:
    if not isinstance(part.activation, str):
        raise NoFormError(part, f"has the activation {part.activation!r}, which only torch runs")
    return FeedForwardForm(form_of(part.expand, LinearForm), form_of(part.contract, LinearForm), part.activation, gate)
