"""Linear layers: torch.nn.Linear by the fastest products of the CPU (regard.ops.linear)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.compat.torch import is_eager, linear_weights, runs_original_forward
from regard.ops.linear import linear, may_be_compiled

_MIN_FUSED_SIZE = 6 << 20
"""Number of multiplications from which one product of several layers is faster than one of each."""

_MAX_COPIED = 1 << 22
"""Number of weights up to which an accelerator copies them to one product of several layers: a
guess, not measured on a device."""


class Linear(nn.Linear):
    """torch.nn.Linear with the same parameters, computed by `regard.ops.linear.linear`."""

    def forward(self, input: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        return linear(input, *linear_weights(self))


def fused_linear(
    items: Float[Tensor, "*batch in"], *layers: Linear
) -> tuple[Float[Tensor, "*batch _"], ...]:
    """Return the output of each layer for the same items; in training, as one product."""
    if not runs_original_forward(Linear, *layers):
        return tuple(layer(items) for layer in layers)
    weights, biases, widths = [], [], []
    for layer in layers:
        weight, bias = linear_weights(layer)
        weights.append(weight)
        biases.append(bias)
        widths.append(weight.shape[0])
    # A size in a compiled program would limit the lengths that it takes.
    size = 0 if torch.compiler.is_compiling() else items.numel() * sum(widths)
    is_large, on_cpu = size >= _MIN_FUSED_SIZE and is_eager(), items.device.type == "cpu"
    if not on_cpu:  # on an accelerator launches are the time of small products, not large ones
        is_large = size > 0 and sum(map(Tensor.numel, weights)) <= _MAX_COPIED
    if is_large and torch.is_grad_enabled():
        added = [bias for bias in biases if bias is not None]
        has_parameters = all(type(weight) is nn.Parameter for weight in weights)
        if has_parameters and len(added) in (0, len(biases)):
            if added and not on_cpu:
                return linear(items, *_join(weights, added)).split(widths, -1)
            bias = torch.cat(added) if added else None
            return linear(items, torch.cat(weights), bias).split(widths, -1)
    product = linear
    is_small = size > 0 and not any(may_be_compiled(items, weight) for weight in weights)
    if is_small and not torch.is_autocast_enabled("cpu"):
        product = nn.functional.linear  # as `linear` would, at less cost
    outs = []
    for weight, bias in zip(weights, biases, strict=True):
        outs.append(product(items, weight, bias))
    return tuple(outs)


def _join(weights: list[Tensor], biases: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the weights and biases of several layers as those of one, by one copy."""
    numbers = torch.cat([*(weight.flatten() for weight in weights), *biases])
    num_biases = sum(len(bias) for bias in biases)
    weight, bias = numbers.split((len(numbers) - num_biases, num_biases))
    return weight.view(num_biases, -1), bias
