"""Linear layers: torch.nn.Linear by the fastest matrix products of the CPU, and several layers
fused into one product.

The products are in regard.ops.linear.
"""

from jaxtyping import Float
from torch import Tensor, nn

from regard.compat.torch import runs_original_forward
from regard.layers.forms import LinearForm
from regard.ops.linear import linear, linears


class Linear(nn.Linear):
    """torch.nn.Linear with the same parameters, computed by `regard.ops.linear.linear`."""

    def forward(self, input: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """Return input W^T + b."""
        return linear(input, self.weight, self.bias)

    def form(self) -> LinearForm:
        """Return the form of this module (regard.layers.forms)."""
        return LinearForm(self.weight, self.bias)


def fused_linear(
    items: Float[Tensor, "*batch in"], *layers: Linear
) -> tuple[Float[Tensor, "*batch _"], ...]:
    """Return the output of each layer for the same items; in training on a CPU, compute them as one
    product."""
    if not runs_original_forward(Linear, *layers):
        return tuple(layer(items) for layer in layers)
    return linears(items, [layer.weight for layer in layers], [layer.bias for layer in layers])
