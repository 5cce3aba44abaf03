"""Linear layers: torch.nn.Linear by the fastest matrix products of the CPU, and several layers fused into one product.

The products are in regard.ops.linear.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.axes import is_eager
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


def is_exact(kind: type, *modules: nn.Module) -> bool:
    """Return True if each module is an instance of exactly this class, without hooks or a replaced forward.

    Only then may its weights be used without calling the module.
    """
    hooks = nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks or hooks._global_backward_hooks:
        return False
    return not hooks._global_backward_pre_hooks and not any(
        type(module) is not kind
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or module._compiled_call_impl is not None
        or "forward" in vars(module)
        for module in modules
    )


def fused_linear(items: Float[Tensor, "*batch in"], *layers: Linear) -> tuple[Float[Tensor, "*batch _"], ...]:
    """Return the output of each layer for the same items; in training on a CPU, compute them as one product."""
    if not is_exact(Linear, *layers):
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
