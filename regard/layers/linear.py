"""Linear layers: torch.nn.Linear by the fastest products of the CPU (regard.ops.linear)."""

from jaxtyping import Float
from torch import Tensor, nn

from regard.compat.torch import runs_original_forward
from regard.layers.forms import LinearForm
from regard.ops.linear import linear, linears


class Linear(nn.Linear):
    """torch.nn.Linear with the same parameters, computed by `regard.ops.linear.linear`."""

    def forward(self, input: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        return linear(input, self.weight, self.bias)

    def form(self) -> LinearForm:
        return LinearForm(self.weight, self.bias)


def fused_linear(
    items: Float[Tensor, "*batch in"], *layers: Linear
) -> tuple[Float[Tensor, "*batch _"], ...]:
    """Return the output of each layer for the same items; in training on a CPU, as one product."""
    if not runs_original_forward(Linear, *layers):
        return tuple(layer(items) for layer in layers)
    weights, biases = [], []
    for layer in layers:
        weights.append(layer.weight)
        biases.append(layer.bias)
    return linears(items, weights, biases)
