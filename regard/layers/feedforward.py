"""Position-wise feed-forward networks: the same layers at every position.

    FFN(x)      = W_2 f(W_1 x + b_1) + b_2
    gated       = W_2 (f(W_g x + b_g) * (W_1 x + b_1)) + b_2      SwiGLU: f = silu;  GeGLU: f = gelu
    dense       = f(W x + b)                                      one layer: DenseLayer

The activation f has a name, or is a function:

    relu        max(0, x)
    gelu        x Phi(x), with the distribution function Phi of the normal distribution
    gelu-tanh   x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, an approximation of gelu
    silu        x / (1 + e^-x), also called swish

Source: lectures, D.3, D.4, C.11 (one layer); vaswani2017, section 3.3; gated shazeer2020; gelu
        hendrycks2016; silu elfwing2018.
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
    gated:      with the gate f(W_g x), such as SwiGLU (activation silu, mostly without bias).
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        bias: bool = True,
        gated: bool = False,
    ):
        super().__init__()
        _check_activation(activation)
        self.gate = Linear(dim, hidden, bias=bias) if gated else None
        self.expand = Linear(dim, hidden, bias=bias)
        self.contract = Linear(hidden, dim, bias=bias)
        self.activation = activation

    def forward(self, items: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        activation, expand = self.activation, self.expand
        if self.gate is not None:
            gate, expanded = fused_linear(items, self.gate, expand)
            return self.contract(_activate(activation, gate) * expanded)
        if activation == "relu" and runs_original_forward(Linear, expand):
            return self.contract(linear(items, expand.weight, expand.bias, relu=True))
        return self.contract(_activate(activation, expand(items)))

    def form(self) -> FeedForwardForm:
        if not isinstance(self.activation, str):
            reason = f"has the activation {self.activation!r}, which only torch runs"
            raise NoFormError(self, reason)
        expand, contract = form_of(self.expand, LinearForm), form_of(self.contract, LinearForm)
        gate = None if self.gate is None else form_of(self.gate, LinearForm)
        return FeedForwardForm(expand, contract, self.activation, gate)


class DenseLayer(nn.Module):
    """Single layer u = f(W x + b) of dim inputs and outputs. activation: as of FeedForward."""

    def __init__(
        self, dim: int, *, activation: str | Callable[[Tensor], Tensor] = "relu", bias: bool = True
    ):
        super().__init__()
        _check_activation(activation)
        self.map, self.activation = Linear(dim, dim, bias=bias), activation

    def forward(self, items: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        return _activate(self.activation, self.map(items))


def _check_activation(activation: object) -> None:
    if not callable(activation) and activation not in ACTIVATIONS:
        names = ", ".join(ACTIVATIONS)
        raise ValueError(f"activation must be one of {names}, or a function, got {activation!r}")


def _activate(activation: str | Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return ACTIVATIONS[activation](x) if isinstance(activation, str) else activation(x)
