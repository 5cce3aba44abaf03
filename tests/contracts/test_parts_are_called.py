"""Parts that are replaced, adapted or hooked take effect: fused paths use the weights of exact parts alone."""

import pytest
import torch
from torch import nn

from regard.data.batches import pad
from regard.data.tokenize import BOS, EOS
from regard.layers.dropout import Dropout
from regard.models.build import build
from regard.models.config import ModelConfig, TransformerConfig
from regard.models.model import Model

pytestmark = pytest.mark.usefixtures("unchecked")

WIDTH = 64
"""Wide enough that training takes the fused paths."""
SOURCE, TARGET = pad([[5, 6, 7, EOS] * 8] * 4), pad([[BOS, 8, 9, 4, EOS] * 6] * 4)


class Adapted(nn.Module):
    """A linear map and a low-rank update beside it, which tells its weights as adapters do (hu2022)."""

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


def model(norm: str) -> Model:
    torch.manual_seed(2)
    core = TransformerConfig(layers=1, width=WIDTH, heads=2, feedforward=96, norm=norm)
    return build(ModelConfig(core=core, dropout=0.1), source_vocab=13, target_vocab=13)


def hidden(of: Model) -> torch.Tensor:
    torch.manual_seed(7)  # the same dropout
    return of.hidden(SOURCE, TARGET)


def parts(kind: type) -> list[str]:
    return [name for name, part in model("post").named_modules() if isinstance(part, kind)]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", parts(nn.Linear))
def test_an_adapter_of_a_linear_map_takes_effect_and_is_trained(name, train, norm) -> None:
    adapted = model(norm).train(train)
    plain = hidden(adapted)
    part = Adapted(adapted.get_submodule(name))
    adapted.set_submodule(name, part)
    out = hidden(adapted)
    assert (out - plain).abs().max() > 1e-3
    out.square().sum().backward()
    assert part.update.weight.grad is not None
    assert part.update.weight.grad.abs().max() > 1e-6


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", [*parts(nn.Linear), *parts(nn.LayerNorm), *parts(Dropout)])
def test_a_hook_is_called_with_what_a_part_gives(name, train) -> None:
    hooked = model("post").train(train)
    plain = hidden(hooked)
    calls: list[str] = []

    def scale(_module: nn.Module, _inputs: object, out: torch.Tensor) -> torch.Tensor:
        calls.append(name)
        return out * torch.linspace(0.5, 1.5, out.shape[-1])  # which no norm takes back

    hooked.get_submodule(name).register_forward_hook(scale)
    out = hidden(hooked)
    assert calls
    assert (out - plain).abs().max() > 1e-4


@pytest.mark.parametrize("train", [True, False])
def test_a_norm_of_another_kind_is_called(train) -> None:
    changed = model("post").train(train)
    plain = hidden(changed)
    changed.core.encoder[0].add_attention.norm = nn.RMSNorm(WIDTH)
    assert (hidden(changed) - plain).abs().max() > 1e-3
