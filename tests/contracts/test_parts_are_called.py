"""Changed submodules take effect: fused paths only use the weights of unmodified modules."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from regard.attention.choices import TopK
from regard.attention.masks import Padded
from regard.attention.scores import Additive
from regard.data.batches import pad
from regard.data.tokenizer import BOS, EOS
from regard.layers.dropout import Dropout
from regard.layers.pool import ClassToken
from regard.layers.positions.config import LearnedConfig, RelativeConfig
from regard.models.build import build, build_language_model
from regard.models.config import LanguageModelConfig, ModelConfig
from regard.models.cores.config import RecurrentConfig, SelfAttentiveConfig, TransformerConfig
from regard.models.cores.transformer import Transformer
from regard.models.model import Model
from regard.models.readers.tokens import TokenReader, embedding_table
from regard.models.readers.tracks import SceneTrackReader
from regard.models.writers.classes import ClassWriter
from regard.models.writers.tracks import SceneTrackWriter
from regard.models.writers.writer import Writer
from tests.models import test_grid as grid
from tests.training import minimal

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


def language(**fields: object) -> Model:
    core = TransformerConfig(layers=1, width=12, heads=2, feedforward=9, **fields)
    return build_language_model(LanguageModelConfig(core=core, embedding_dim=7), vocab=13)


def translator(kind: type, **fields: object) -> Model:
    core = kind(width=12, hidden=10, attention_hidden=5, **fields)
    return build(
        # Steps of their own draw other dropout than one operation for all.
        ModelConfig(core=core, tie="none", embedding_dim=7, dropout=0.0),
        source_vocab=13,
        target_vocab=13,
    )


MODELS: dict[str, Callable[[], Model]] = {
    "relative, general": lambda: language(positions=RelativeConfig(), score="general"),
    "learned, additive": lambda: language(positions=LearnedConfig(max_length=40), score="additive"),
    "cosine": lambda: language(score="cosine", soft_cap=9.0),
    "concat, sparse": lambda: language(score="concat", choice="sparse", beta="learned"),
    "additive maps": lambda: language(score="additive", score_hidden=3),
    "gru": lambda: translator(RecurrentConfig),
    "cosine of states": lambda: translator(RecurrentConfig, attention="cosine"),
    "lstm, location": lambda: translator(RecurrentConfig, cell="lstm", attention="location"),
    "self-attentive": lambda: translator(SelfAttentiveConfig, self_attention_recency="learned"),
    "inducing points": lambda: build(
        ModelConfig(core=TransformerConfig(layers=1, width=12, heads=2, inducing_points=3)),
        source_vocab=13,
        target_vocab=13,
    ),
    "grid": lambda: grid.make_model("images", "transformer", "grid"),
    "sets": lambda: grid.make_model("tracks", "transformer", "sets"),
    "proposals": lambda: minimal.model_of("transformer", "proposals"),
    "tags": lambda: grid.make_model("tokens", "transformer", "tags"),
    "scenes": lambda: Model(
        reader=SceneTrackReader(4, 12),
        core=Transformer(layers=1, width=12, heads=2, decodes=False),
        writer=SceneTrackWriter(12, 2),
    ),
    "class token": lambda: Model(
        reader=TokenReader(embedding_table(13, 12)),
        core=Transformer(layers=1, width=12, heads=2, decodes=False),
        writer=ClassWriter(12, 3, pool=ClassToken(12)),
    ),
    "pooling": lambda: grid.make_model("tracks", "recurrent", "classes"),
}


def example_of(name: str) -> Any:
    if name == "proposals":
        return minimal.Rows(name).collate(0, range(minimal.ROWS))
    if name == "scenes":
        paths = Padded(torch.randn(3, 5, 2, 2), torch.tensor([5, 1, 2]))
        return grid.Example(grid.READERS["tracks"].source(), paths)
    if name in ("grid", "sets", "tags", "pooling"):
        reader = {"grid": "images", "tags": "tokens"}.get(name, "tracks")
        return grid.make_example(reader, {"pooling": "classes"}.get(name, name))
    if name == "class token":
        return grid.Example(SOURCE, torch.tensor([0, 1, 2, 0]))
    is_language = MODELS[name]().reader is None
    return grid.Example(None if is_language else SOURCE, TARGET)


def owners(model: Model) -> dict[str, nn.Module]:
    """Return the modules with parameters of their own, except torch's recurrent layers."""
    found = {}
    for name, part in model.named_modules():
        if list(part.parameters(recurse=False)) and not isinstance(part, nn.RNNBase):
            found[name] = part
    return found


@pytest.mark.parametrize(
    "make",
    [*MODELS.values(), lambda: Additive(2, 3, 4, normed=True), lambda: TopK(2, learn=True)],
)
def test_every_parameter_has_an_axis_that_fsdp_can_shard(make: Callable[[], nn.Module]) -> None:
    assert all(parameter.dim() for parameter in make().parameters())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("train", [True, False])
def test_pruned_weights_are_those_that_are_used(name, train) -> None:
    torch.manual_seed(0)
    pruned, example = MODELS[name]().train(train), example_of(name)
    plain = copy.deepcopy(pruned)
    for other, part in zip(owners(plain).values(), owners(pruned).values(), strict=True):
        for weight in [weight for weight, _ in part.named_parameters(recurse=False)]:
            value = getattr(part, weight)
            mask = (torch.arange(value.numel()) % 9 > 0).view_as(value)
            prune.custom_from_mask(part, weight, mask)
            with torch.no_grad():  # as an optimizer or a checkpoint changes it
                original = getattr(part, f"{weight}_orig").mul_(1.2).add_(0.02)
                getattr(other, weight).copy_(original * mask)
    for _ in range(2):
        torch.manual_seed(1)
        loss = pruned.loss(example).total
        torch.manual_seed(1)
        torch.testing.assert_close(loss, plain.loss(example).total, rtol=1e-5, atol=1e-6)
        loss.backward()


@pytest.mark.parametrize("name", MODELS)
def test_hooks_of_each_module_with_parameters_are_called(name) -> None:
    hooked, example = MODELS[name]().eval(), example_of(name)
    calls: set[str] = set()
    for place, part in owners(hooked).items():
        is_before = isinstance(part, Writer) or place.endswith("choice.soft")  # never forward
        register = part.register_forward_pre_hook if is_before else part.register_forward_hook
        register(lambda *_, place=place: calls.add(place))
    hooked.loss(example)
    assert owners(hooked).keys() - calls == set()
