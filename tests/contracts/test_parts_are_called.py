"""Changed submodules take effect: fused paths only use the weights of unmodified modules."""

import pytest
import torch
from torch import nn

from regard.data.batches import pad
from regard.data.tokenizer import BOS, EOS
from regard.layers.dropout import Dropout
from regard.models.build import build
from regard.models.config import ModelConfig
from regard.models.cores.config import TransformerConfig
from regard.models.model import Model

pytestmark = pytest.mark.usefixtures("no_shape_checks")

WIDTH = 64
"""Wide enough that training takes the fused paths."""
SOURCE, TARGET = pad([[5, 6, 7, EOS] * 8] * 4), pad([[BOS, 8, 9, 4, EOS] * 6] * 4)


class LoraLinear(nn.Module):
    """Linear layer with a low-rank update (LoRA, hu2022), which exposes the base weights."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base, self.update = base, nn.Linear(base.in_features, base.out_features, bias=False)
        self.in_features, self.out_features = base.in_features, base.out_features

    @property
    def weight(self) -> nn.Parameter:
        return self.base.weight

    @property
    def bias(self) -> nn.Parameter:
        return self.base.bias

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.base(items) + self.update(items)


def make_model(norm: str) -> Model:
    torch.manual_seed(2)
    core = TransformerConfig(layers=1, width=WIDTH, heads=2, feedforward=96, norm_order=norm)
    return build(ModelConfig(core=core, dropout=0.1), source_vocab=13, target_vocab=13)


def hidden(model: Model) -> torch.Tensor:
    torch.manual_seed(7)  # the same dropout
    return model.hidden(SOURCE, TARGET)


def names_of_parts(kind: type) -> list[str]:
    return [name for name, part in make_model("post").named_modules() if isinstance(part, kind)]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", names_of_parts(nn.Linear))
def test_an_adapter_of_a_linear_map_takes_effect_and_is_trained(name, train, norm) -> None:
    adapted = make_model(norm).train(train)
    plain = hidden(adapted)
    part = LoraLinear(adapted.get_submodule(name))
    adapted.set_submodule(name, part)
    out = hidden(adapted)
    assert (out - plain).abs().max() > 1e-3
    out.square().sum().backward()
    assert part.update.weight.grad is not None
    assert part.update.weight.grad.abs().max() > 1e-6


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    "name", [*names_of_parts(nn.Linear), *names_of_parts(nn.LayerNorm), *names_of_parts(Dropout)]
)
def test_a_hook_is_called_with_the_output_of_a_part(name, train) -> None:
    hooked = make_model("post").train(train)
    plain = hidden(hooked)
    calls: list[str] = []

    def scale(_module: nn.Module, _inputs: object, out: torch.Tensor) -> torch.Tensor:
        calls.append(name)
        return out * torch.linspace(0.5, 1.5, out.shape[-1])  # which no norm cancels

    hooked.get_submodule(name).register_forward_hook(scale)
    out = hidden(hooked)
    assert calls
    assert (out - plain).abs().max() > 1e-4


@pytest.mark.parametrize("train", [True, False])
def test_a_norm_of_another_kind_is_called(train) -> None:
    changed = make_model("post").train(train)
    plain = hidden(changed)
    changed.core.encoder[0].add_attention.norm = nn.RMSNorm(WIDTH)
    assert (hidden(changed) - plain).abs().max() > 1e-3
