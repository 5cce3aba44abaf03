"""Position-wise feed-forward networks: the same layers at every position.

    FFN(x)      = W_2 f(W_1 x + b_1) + b_2
    gated       = W_2 (f(W_g x + b_g) * (W_1 x + b_1)) + b_2      SwiGLU: f = silu;  GeGLU: f = gelu

The activation f has a name, or is a function:

    relu        max(0, x)
    gelu        x Phi(x), with the distribution function Phi of the normal distribution
    gelu-tanh   x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, an approximation of gelu
    silu        x / (1 + e^-x), also called swish

Source: lectures, D.3, D.4; vaswani2017, section 3.3; gated shazeer2020; gelu hendrycks2016; silu
        elfwing2018.
"""

from collections.abc import Callable
from functools import partial

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.compat.torch import runs_original_forward
from regard.layers.forms import FeedForwardForm, LinearForm, NoFormError, form_of
from regard.layers.linear import Linear, fused_linear
from regard.ops.linear import linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


class FeedForward(nn.Module):
    """Feed-forward network dim -> hidden -> dim.

    activation: relu, gelu, gelu-tanh, silu, or a function (or module).
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        bias: bool = True,
    ):
        super().__init__()
        _check_activation(activation)
        self.expand = Linear(dim, hidden, bias=bias)
        self.contract = Linear(hidden, dim, bias=bias)
        self.activation = activation

    def forward(self, items: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        if self.activation == "relu" and runs_original_forward(Linear, self.expand):
            return self.contract(linear(items, self.expand.weight, self.expand.bias, relu=True))
        return self.contract(_activate(self.activation, self.expand(items)))

    def form(self) -> FeedForwardForm:
        return _form(self, None)


class GatedFeedForward(nn.Module):
    """Gated feed-forward network dim -> hidden -> dim, with the gate f(W_g x) (SwiGLU)."""

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        activation: str | Callable[[Tensor], Tensor] = "silu",
        bias: bool = False,
    ):
        super().__init__()
        _check_activation(activation)
        self.gate = Linear(dim, hidden, bias=bias)
        self.expand = Linear(dim, hidden, bias=bias)
        self.contract = Linear(hidden, dim, bias=bias)
        self.activation = activation

    def forward(self, items: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        gate, expanded = fused_linear(items, self.gate, self.expand)
        return self.contract(_activate(self.activation, gate) * expanded)

    def form(self) -> FeedForwardForm:
        return _form(self, form_of(self.gate, LinearForm))


def _form(part: FeedForward | GatedFeedForward, gate: LinearForm | None) -> FeedForwardForm:
    if not isinstance(part.activation, str):
        raise NoFormError(part, f"has the activation {part.activation!r}, which only torch runs")
    expand, contract = form_of(part.expand, LinearForm), form_of(part.contract, LinearForm)
    return FeedForwardForm(expand, contract, part.activation, gate)


def _check_activation(activation: str | Callable[[Tensor], Tensor]) -> None:
    if not callable(activation) and activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"activation must be one of {known}, or a function, got {activation!r}")


def _activate(activation: str | Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return ACTIVATIONS[activation](x) if isinstance(activation, str) else activation(x)
