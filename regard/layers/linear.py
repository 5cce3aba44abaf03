"""Linear maps as parts of a model: torch.nn.Linear by the fastest products of the CPU at hand, several at once.

How they are computed: regard.attention.kernels.maps.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.axes import is_plain
from regard.attention.kernels.maps import WORTH, linear
from regard.layers.forms import LinearForm


class Linear(nn.Linear):
    """torch.nn.Linear, with the same parameters, computed by `linear`."""

    def forward(self, input: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """input W^T + b."""
        return linear(input, self.weight, self.bias)

    def form(self) -> LinearForm:
        """What it is, as data."""
        return LinearForm(self.weight, self.bias)


def is_exact(kind: type, *modules: nn.Module) -> bool:
    """Return True if each module is exactly of a class, without hooks, adapters or a forward of its own.

    Only then may its weights be used without calling it.
    """
    everywhere = nn.modules.module
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks or everywhere._global_backward_hooks:
        return False
    return not everywhere._global_backward_pre_hooks and not any(
        type(part) is not kind
        or part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        or part._compiled_call_impl is not None
        or "forward" in vars(part)
        for part in modules
    )


def together(items: Float[Tensor, "*batch in"], *maps: Linear) -> tuple[Float[Tensor, "*batch _"], ...]:
    """Each map of the same items; in training on a CPU as one product, which reads and casts them once."""
    if not is_exact(Linear, *maps):
        return tuple(part(items) for part in maps)
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
