"""Linear maps as parts of a model: torch.nn.Linear by the fastest products of the CPU at hand, several at once.

How they are computed: regard.attention.kernels.maps.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.axes import is_plain
from regard.attention.kernels.maps import WORTH, linear
from regard.layers.forms import LinearForm

__all__ = ["Linear", "together"]


class Linear(nn.Linear):
    """torch.nn.Linear, with the same parameters, computed by `linear`."""

    def forward(self, input: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """input W^T + b."""
        return linear(input, self.weight, self.bias)

    def form(self) -> LinearForm:
        """What it is, as data."""
        return LinearForm(self.weight, self.bias)


def together(items: Float[Tensor, "*batch in"], *maps: Linear) -> tuple[Float[Tensor, "*batch _"], ...]:
    """Each map of the same items; in training on a CPU as one product, which reads and casts them once."""
    learns = torch.is_grad_enabled() and items.device.type == "cpu" and is_plain()
    wide = sum(part.out_features for part in maps)
    if not learns or items.numel() * wide < WORTH or any(type(part.weight) is not nn.Parameter for part in maps):
        return tuple(part(items) for part in maps)
    biases: list[Tensor] = [part.bias for part in maps if part.bias is not None]
    if len(biases) not in (0, len(maps)):
        return tuple(part(items) for part in maps)
    weight = torch.cat([part.weight for part in maps])
    out = linear(items, weight, torch.cat(biases) if biases else None)
    return out.split([part.out_features for part in maps], -1)
