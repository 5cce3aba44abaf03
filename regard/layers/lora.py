"""Low-rank adapters (LoRA) of the linear maps of multi-head attention.

    y = W x + b + (32 / rank) B A x        A (rank, in), B (out, rank)

W and b are not trained. At first B is 0, so that training starts from the map as it was, and A is
uniform in +-1 / sqrt(in). Adapters take 10 times the learning rate of full training, for all ranks.

Source: hu2021, section 4.1; the factor and the rate schulman2025.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.layers.linear import Linear
from regard.layers.multihead import MultiHead
from regard.layers.written import WrittenAttention

ADAPTER_RATE = 10.0
"""Factor of the learning rate of adapters."""
ADAPTERS = _DOWN, _UP = "adapter_down", "adapter_up"
"""Ends of the names of their parameters."""
_ALPHA = 32.0


class AdaptedLinear(Linear):
    """Linear map with a low-rank adapter; weight and bias are those of `layer`."""

    def __init__(self, layer: Linear, rank: int, generator: torch.Generator):
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        self.weight, self.bias = layer.weight, layer.bias  # pyrefly: ignore[bad-assignment]
        down = torch.rand(rank, layer.in_features, generator=generator) * 2 - 1
        down = down * layer.in_features**-0.5
        self.adapter_down = nn.Parameter(down.to(layer.weight))
        self.adapter_up = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))

    def forward(self, input: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        update = nn.functional.linear(input, self.adapter_down) * (_ALPHA / len(self.adapter_down))
        return super().forward(input) + nn.functional.linear(update, self.adapter_up)


def add_adapters(model: nn.Module, rank: int, *, seed: int) -> None:
    """Adapt the linear maps of each MultiHead and WrittenAttention in a model, in place."""
    generator = torch.Generator().manual_seed(seed)
    kinds = MultiHead, WrittenAttention
    for attention in [part for part in model.modules() if isinstance(part, kinds)]:
        for name, layer in list(attention.named_children()):
            if type(layer) is Linear:
                setattr(attention, name, AdaptedLinear(layer, rank, generator))


def remove_adapters(model: nn.Module) -> None:
    """Replace adapted maps by plain ones of weight W, for tensors of `merged_tensors`, in place."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, AdaptedLinear):
            plain = Linear(layer.in_features, layer.out_features, bias=False, device="meta")
            plain.weight, plain.bias = layer.weight, layer.bias
            model.set_submodule(name, plain.train(layer.training))


def merged_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a model with W + (32 / rank) B A in place of each W, A and B."""
    merged = dict(tensors)
    for name in tensors:
        if name.endswith(f".{_UP}"):
            above = name.removesuffix(_UP)
            down = merged.pop(above + _DOWN)
            update = merged.pop(above + _UP) @ down * (_ALPHA / len(down))
            merged[f"{above}weight"] = merged[f"{above}weight"] + update
    return merged
