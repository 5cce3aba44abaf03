"""Linear layers: torch.nn.Linear by the fastest matrix products of the CPU, and several layers fused into one product.

The products are in regard.ops.linear.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.compat.torch import is_eager, runs_original_forward
from regard.layers.forms import LinearForm
from regard.ops.linear import MIN_SIZE, linear


class Linear(nn.Linear):
    """torch.nn.Linear with the same parameters, computed by `regard.ops.linear.linear`."""

    def forward(self, input: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """Return input W^T + b."""
        return linear(input, self.weight, self.bias)

    def form(self) -> LinearForm:
        """Return the form of this module (regard.layers.forms)."""
        return LinearForm(self.weight, self.bias)


def fused_linear(items: Float[Tensor, "*batch in"], *layers: Linear) -> tuple[Float[Tensor, "*batch _"], ...]:
    """Return the output of each layer for the same items; in training on a CPU, compute them as one product."""
    if not runs_original_forward(Linear, *layers):
        return tuple(layer(items) for layer in layers)
    is_training = torch.is_grad_enabled() and items.device.type == "cpu" and is_eager()
    out_features = sum(layer.out_features for layer in layers)
    if (
        not is_training
        or items.numel() * out_features < MIN_SIZE
        or any(type(layer.weight) is not nn.Parameter for layer in layers)
    ):
        return tuple(layer(items) for layer in layers)
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    if len(biases) not in (0, len(layers)):
        return tuple(layer(items) for layer in layers)
    weight = torch.cat([layer.weight for layer in layers])
    out = linear(items, weight, torch.cat(biases) if biases else None)
    return out.split([layer.out_features for layer in layers], -1)
