"""Changes of any module or class: seen when the model is lowered, and refused by name."""

import dataclasses
import functools
import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune

from regard.attention.positional import ByDistance
from regard.data.batches import pad
from regard.data.tokenize import EOS
from regard.engines.interpret import logits
from regard.engines.lowering import KNOWN, lower
from regard.engines.reference import TorchEngine
from regard.engines.registry import prepare, refusal
from regard.layers.blocks import DecoderBlock
from regard.layers.feedforward import FeedForward
from regard.layers.forms import FeedForwardForm, LinearForm, leaves
from regard.layers.multihead import MultiHead
from regard.layers.positions import Sinusoidal
from regard.layers.residual import Residual
from regard.models.reads.tokens import TokenReader
from regard.models.writes.tokens import TokenWriter
from tests.engines.small import (
    SMALL,
    Change,
    asked,
    speaker,
    translator,
)

pytestmark = pytest.mark.usefixtures("unchecked")  # thousands of small models


class Louder:
    """A forward that is not what it inherits."""

    def __call__(self, *inputs: Any) -> Any:
        out = super().__call__(*inputs)  # type: ignore[misc]
        return out * 1.5 if isinstance(out, torch.Tensor) else out


def derived(module: nn.Module) -> None:
    module.__class__ = type("Derived", (type(module),), {})


def overridden(module: nn.Module) -> None:
    module.__class__ = type("Overridden", (Louder, type(module)), {})


def patched(module: nn.Module) -> None:
    module.forward = types.MethodType(type(module).forward, module)


def called(module: nn.Module) -> None:
    module.__dict__["_compiled_call_impl"] = lambda *inputs: None


CHANGES: dict[str, Change] = {
    "a subclass": derived,
    "a subclass with its own forward": overridden,
    "a forward of its own": patched,
    "compiled": called,
    "a forward hook": lambda module: module.register_forward_hook(lambda *told: None),
    "a forward hook with keywords": lambda module: module.register_forward_hook(lambda *told: None, with_kwargs=True),
    "a forward pre-hook": lambda module: module.register_forward_pre_hook(lambda *told: None),
    "a backward hook": lambda module: module.register_full_backward_hook(lambda *told: None),
    "a backward pre-hook": lambda module: module.register_full_backward_pre_hook(lambda *told: None),
    "another parameter": lambda module: module.register_parameter("extra", nn.Parameter(torch.ones(1))),
}


MODELS = [
    lambda: translator(dataclasses.replace(SMALL, layers=1)),
    lambda: translator(dataclasses.replace(SMALL, layers=1, positions="relative", norm="post")),
    lambda: speaker(dataclasses.replace(SMALL, layers=1, positions="learned")),
    lambda: speaker(dataclasses.replace(SMALL, layers=1, positions="alibi", score="dot")),
    lambda: speaker(dataclasses.replace(SMALL, layers=1, positions="none")),
]


@pytest.mark.parametrize("make", MODELS)
def test_any_change_of_a_module_is_refused_by_its_name(make) -> None:
    for change, work in CHANGES.items():
        for name, _ in make().named_modules():
            model = make()
            module = model.get_submodule(name)
            if isinstance(module, ByDistance) and change == "another parameter":
                continue  # a bias is copied whole, and run as it is
            work(module)
            reason = refusal("compiled", model)
            assert reason is not None, (change, name)
            assert name in reason


@pytest.mark.parametrize("make", MODELS)
def test_what_a_module_does_not_compute_with_is_not_refused(make) -> None:
    model = make()
    for name, module in list(model.named_modules()):
        module.register_buffer("extra", torch.ones(1, dtype=torch.float64))
        module.note = name
        if not isinstance(module, nn.ModuleList):
            module.add_module("unused", nn.Identity())
    assert refusal("compiled", model) is None


def test_each_kind_of_module_is_tried() -> None:
    # nn.Linear is computed as ours is; no model here is built with it.
    assert {type(module) for make in MODELS for module in make().modules()} == set(KNOWN) - {nn.Linear}


REPLACED: list[tuple[type, str, Any]] = [
    (FeedForward, "forward", lambda self, items: items),
    (nn.LayerNorm, "forward", lambda self, items: 2 * items),
    (nn.Module, "__call__", lambda self, *inputs: self.forward(*inputs) * 1.01),
    (Residual, "_add", lambda self, items, made: items - made),
    (DecoderBlock, "step", lambda self, item, past, source: (item, past)),
    (MultiHead, "extend", lambda self, past, item: past),
    (TokenWriter, "logits", lambda self, hidden: hidden @ self.output_table.weight.T + hidden[..., :1]),
    (TokenReader, "embed", lambda self, ids: self.table(ids)),
    (Sinusoidal, "forward", lambda self, items, start=0: items),
    (FeedForward, "form", lambda self: FeedForwardForm(_linear(self.expand), _linear(self.contract), "gelu")),
]


def _linear(module: Any) -> LinearForm:
    return LinearForm(module.weight, module.bias)


@pytest.mark.parametrize(("kind", "name", "function"), REPLACED)
def test_a_method_that_computes_something_else_is_refused(kind, name, function, monkeypatch) -> None:
    model = translator()
    assert refusal("compiled", model) is None
    monkeypatch.setattr(kind, name, function)
    reason = refusal("compiled", model)
    assert reason is not None
    assert "gives other logits" in reason or "cannot be computed" in reason


def test_a_function_of_torch_that_computes_something_else_is_refused(monkeypatch) -> None:
    model = translator()
    written = functional.layer_norm
    monkeypatch.setattr(functional, "layer_norm", lambda *inputs, **settings: 1.1 * written(*inputs, **settings))
    assert "gives other logits" in str(refusal("compiled", model))


def test_a_relu_that_computes_something_else_is_refused(monkeypatch) -> None:
    model = translator()
    written = torch.relu
    monkeypatch.setattr(torch, "relu", lambda items: 1.3 * written(items))
    assert "gives other logits" in str(refusal("compiled", model))


def test_methods_that_others_add_or_wrap_are_not_refused(monkeypatch) -> None:
    # Transformers adds smart_apply to nn.Module; skipping initialization replaces reset_parameters.
    monkeypatch.setattr(nn.Module, "smart_apply", lambda self, function: self, raising=False)
    monkeypatch.setattr(nn.Module, "num_parameters", lambda self: 0, raising=False)
    monkeypatch.setattr(nn.Module, "__repr__", lambda self: "")
    monkeypatch.setattr(nn.Linear, "reset_parameters", lambda self: None)
    written = FeedForward.forward
    monkeypatch.setattr(FeedForward, "forward", functools.wraps(written)(lambda *inputs: written(*inputs)))  # noqa: PLW0108
    assert refusal("compiled", translator()) is None


@pytest.mark.parametrize("make", MODELS)
def test_the_interpreter_gives_the_logits_of_the_model(make) -> None:
    """All positions at once, which the probe does not compare."""
    model = make().eval()
    form = lower(model, lambda form: None)
    source, target = torch.tensor([5, 6, 7, 8, 9, 10]), torch.tensor([1, 4, 9, 12, 3, 3, 7])
    with torch.no_grad():
        if form.source is None:
            expected, found = model(target[None])[0], logits(form, None, target)
        else:
            sources, targets = pad([source.tolist()]), pad([[*target.tolist(), EOS]])
            expected, found = model(sources, targets)[0], logits(form, source, target)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_hooks_of_all_modules_are_refused() -> None:
    model = translator()
    taken = nn.modules.module.register_module_forward_hook(lambda *told: None)
    try:
        assert refusal("compiled", model) == "there are hooks on all modules"
    finally:
        taken.remove()
    assert refusal("compiled", model) is None


def test_a_form_holds_copies_and_keeps_what_is_shared() -> None:
    model = translator(dataclasses.replace(SMALL, positions="relative"), tie="all")
    form = lower(model, lambda form: None)
    assert form.source is not None
    assert form.source.weight is form.writes.output
    biases = {id(block.attention.read.bias) for block in form.core.encoder}
    assert len(biases) == 1
    own = {weight.data_ptr() for weight in model.parameters()}
    held = [leaf for leaf in leaves(form) if isinstance(leaf, torch.Tensor)]
    held += [weight for leaf in leaves(form) if isinstance(leaf, ByDistance) for weight in leaf.buffers()]
    assert not own & {weight.data_ptr() for weight in held}
    assert not any(weight.requires_grad for weight in held)


@pytest.mark.parametrize("make", [translator, speaker])
@pytest.mark.parametrize("scale", [1e8, 1e10])
def test_weights_that_overflow_are_an_error_of_every_engine(make, scale) -> None:
    """Never an answer where torch has none."""
    model = make(dataclasses.replace(SMALL, width=16))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale)
    assert asked(TorchEngine(model)) == "ValueError"
    assert asked(prepare("compiled", model)) == "ValueError"
    assert asked(prepare("compiled", model, compute_type="int8")) == "ValueError"
    assert "may overflow" in str(refusal("ctranslate2", model))


def test_parametrized_weights_are_refused() -> None:
    class Doubled(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return 2 * weight

    for name, _ in [*translator().named_parameters()]:
        model = translator()
        owner, _, weight = name.rpartition(".")
        parametrize.register_parametrization(model.get_submodule(owner), weight, Doubled())
        assert owner in str(refusal("compiled", model))
    makers: list[Change] = [
        parametrizations.weight_norm, parametrizations.spectral_norm,
        lambda module: prune.random_unstructured(module, "weight", amount=0.5),
    ]  # fmt: skip
    for make in makers:
        model = translator()
        make(model.core.decoder[0].feedforward.expand)
        assert "core.decoder.0.feedforward.expand" in str(refusal("compiled", model))


def test_methods_of_an_instance_are_refused() -> None:
    for path, name in (
        ("", "step"), ("", "start"), ("core", "step"), ("core", "encode"), ("core.decoder.0", "step"),
        ("core.decoder.0.attention", "memory"), ("core.decoder.0.attention", "extend"), ("writes", "logits"),
        ("core.encoder.0.attention.read.score", "map_query"), ("core.encoder.0.attention.read.choose", "weights"),
        ("core.encoder.0.attention.read.choose", "scaled"), ("reads", "embed"), ("core", "form"),
    ):  # fmt: skip
        model = translator()
        module = model.get_submodule(path)
        setattr(module, name, types.MethodType(lambda self, *inputs: None, module))
        assert f"has a {name} of its own" in str(refusal("compiled", model))
