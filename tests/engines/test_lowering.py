"""Changes of modules and classes: detected when the model is lowered, and refused by name."""

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from regard.attention.biases import DistanceBias
from regard.engines.lowering import KNOWN, lower, parts_of
from regard.engines.registry import prepare
from regard.engines.torch import TorchEngine
from regard.layers.blocks import DecoderBlock
from regard.layers.feedforward import FeedForward
from regard.layers.forms import FeedForwardForm, LinearForm
from regard.layers.multihead import MultiHead
from regard.layers.positions.config import (
    AlibiConfig,
    LearnedConfig,
    NoPositionsConfig,
    RelativeConfig,
    RotaryConfig,
)
from regard.layers.positions.sinusoidal import Sinusoidal
from regard.layers.residual import Residual
from regard.models.readers.tokens import TokenReader
from regard.models.writers.tokens import TokenWriter
from tests.engines.small import (
    SMALL,
    Change,
    encoder_decoder,
    language_model,
    outputs,
    unsupported_reason,
)

pytestmark = pytest.mark.usefixtures("no_shape_checks")  # thousands of small models


class ScaledOutput:
    """Class whose call differs from the one it inherits."""

    def __call__(self, *inputs: Any) -> Any:
        out = super().__call__(*inputs)  # type: ignore[misc]
        return out * 1.5 if isinstance(out, torch.Tensor) else out


def derive(module: nn.Module) -> None:
    module.__class__ = type("Derived", (type(module),), {})


def override(module: nn.Module) -> None:
    module.__class__ = type("Overridden", (ScaledOutput, type(module)), {})


def patch(module: nn.Module) -> None:
    module.forward = types.MethodType(type(module).forward, module)


def set_compiled_call(module: nn.Module) -> None:
    module.__dict__["_compiled_call_impl"] = lambda *inputs: None


def hook(kind: str, **options: bool) -> Change:
    return lambda module: getattr(module, f"register_{kind}")(lambda *arguments: None, **options)


CHANGES: dict[str, Change] = {
    "a subclass": derive,
    "a subclass with its own forward": override,
    "a replaced forward": patch,
    "compiled": set_compiled_call,
    "a forward hook": hook("forward_hook"),
    "a forward hook with keywords": hook("forward_hook", with_kwargs=True),
    "a forward pre-hook": hook("forward_pre_hook"),
    "a backward hook": hook("full_backward_hook"),
    "a backward pre-hook": hook("full_backward_pre_hook"),
    "another parameter": lambda module: module.register_parameter(
        "extra", nn.Parameter(torch.ones(1))
    ),
}


def one_layer(make: Callable[[Any], Any], **options: Any) -> Callable[[], Any]:
    return lambda: make(dataclasses.replace(SMALL, layers=1, **options))


MODELS = [
    one_layer(encoder_decoder),
    one_layer(encoder_decoder, positions=RelativeConfig(), norm_order="post"),
    one_layer(language_model, positions=LearnedConfig()),
    one_layer(language_model, positions=AlibiConfig(), score="dot", sink="learned"),
    one_layer(language_model, positions=NoPositionsConfig(), choice="sigmoid"),
    one_layer(language_model, positions=RotaryConfig(), norm="rms", gated=True, qk_norm="l2"),
    one_layer(language_model, pattern="D"),
]


def test_any_change_of_a_module_is_refused_by_name() -> None:
    """The first change is made to every module, each other one to a module of every class."""
    seen: set[type] = set()
    for make in MODELS:
        for name, part in make().named_modules():
            for change, apply in [*CHANGES.items()][: 1 if type(part) in seen else None]:
                if isinstance(part, DistanceBias) and change == "another parameter":
                    continue  # a bias is copied and run as it is
                model = make()
                apply(model.get_submodule(name))
                reason = unsupported_reason(model)
                assert reason is not None, (change, name)
                assert name in reason
            seen.add(type(part))


@pytest.mark.parametrize("make", MODELS)
def test_attributes_without_effect_are_not_refused(make) -> None:
    model = make()
    for name, module in list(model.named_modules()):
        module.register_buffer("extra", torch.ones(1, dtype=torch.float64))
        module.note = name
        if not isinstance(module, nn.ModuleList):
            module.add_module("unused", nn.Identity())
    assert unsupported_reason(model) is None


def test_each_class_of_module_is_tested() -> None:
    # Those of torch are computed like ours of the same name; no model here contains them.
    assert {type(module) for make in MODELS for module in make().modules()} == set(KNOWN) - {
        nn.Linear,
        nn.RMSNorm,
    }


REPLACED: list[tuple[type, str, Any]] = [
    (FeedForward, "forward", lambda self, items: items),
    (nn.LayerNorm, "forward", lambda self, items: 2 * items),
    (nn.Module, "__call__", lambda self, *inputs: self.forward(*inputs) * 1.01),
    (Residual, "forward", lambda self, items, part: items - part(items)),
    (DecoderBlock, "step", lambda self, item, past, source: (item, past)),
    (MultiHead, "extend", lambda self, past, item: past),
    (
        TokenWriter,
        "answer",
        lambda self, hidden: hidden @ self.output_table.weight.T + hidden[..., :1],
    ),
    (TokenReader, "embed", lambda self, ids: self.table(ids)),
    (Sinusoidal, "add", lambda self, items, start=0: items),
    (
        FeedForward,
        "form",
        lambda self: FeedForwardForm(_linear(self.expand), _linear(self.contract), "gelu"),
    ),
]


def _linear(module: Any) -> LinearForm:
    return LinearForm(module.weight, module.bias)


@pytest.mark.parametrize(("kind", "name", "function"), REPLACED)
def test_replaced_method_that_computes_something_else_is_refused(
    kind, name, function, monkeypatch
) -> None:
    model = encoder_decoder()
    assert unsupported_reason(model) is None
    monkeypatch.setattr(kind, name, function)
    assert f"has a replaced method {name} of" in str(unsupported_reason(model))


def test_methods_that_other_libraries_add_or_wrap_are_not_refused(monkeypatch) -> None:
    # Transformers adds smart_apply to nn.Module; skipping initialization replaces reset_parameters.
    monkeypatch.setattr(nn.Module, "smart_apply", lambda self, function: self, raising=False)
    monkeypatch.setattr(nn.Module, "num_parameters", lambda self: 0, raising=False)
    monkeypatch.setattr(nn.Module, "__repr__", lambda self: "")
    monkeypatch.setattr(nn.Linear, "reset_parameters", lambda self: None)
    original = FeedForward.forward
    wrapped = functools.wraps(original)(lambda *inputs: original(*inputs))  # noqa: PLW0108
    monkeypatch.setattr(FeedForward, "forward", wrapped)
    assert unsupported_reason(encoder_decoder()) is None


def test_global_module_hooks_are_refused() -> None:
    model = encoder_decoder()
    handle = nn.modules.module.register_module_forward_hook(lambda *arguments: None)
    try:
        assert unsupported_reason(model) == "there are global module hooks"
    finally:
        handle.remove()
    assert unsupported_reason(model) is None


def test_form_holds_copies_and_keeps_shared_tensors_shared() -> None:
    model = encoder_decoder(dataclasses.replace(SMALL, positions=RelativeConfig()), tie="all")
    form = lower(model)
    assert form.source is not None
    assert form.source.weight is form.writer.output.weight
    biases = {id(block.attention.read.bias) for block in form.core.encoder}
    assert len(biases) == 1
    own = {weight.data_ptr() for weight in model.parameters()}
    copies = parts_of(form, torch.Tensor)
    for bias in parts_of(form, DistanceBias):
        copies += [*bias.buffers(), *bias.parameters()]
    assert not own & {weight.data_ptr() for weight in copies}


@pytest.mark.parametrize("make", [encoder_decoder, language_model])
@pytest.mark.parametrize("scale", [1e8, 1e10])
def test_weights_that_overflow_are_an_error_of_every_engine(make, scale) -> None:
    """No engine may return outputs where torch raises."""
    model = make(dataclasses.replace(SMALL, width=16))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale)
    assert outputs(TorchEngine(model)) == "ValueError"
    assert outputs(prepare("compiled", model)) == "ValueError"
    assert outputs(prepare("compiled", model, compute_type="int8")) == "ValueError"


def test_parametrized_weights_are_refused() -> None:
    class Doubled(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return 2 * weight

    for name, _ in [*encoder_decoder().named_parameters()]:
        model = encoder_decoder()
        owner, _, weight = name.rpartition(".")
        parametrize.register_parametrization(model.get_submodule(owner), weight, Doubled())
        assert owner in str(unsupported_reason(model))
    makers: list[Change] = [
        parametrizations.weight_norm, parametrizations.spectral_norm,
        lambda module: prune.random_unstructured(module, "weight", amount=0.5),
    ]  # fmt: skip
    for make in makers:
        model = encoder_decoder()
        make(model.core.decoder[0].feedforward.expand)
        assert "core.decoder.0.feedforward.expand" in str(unsupported_reason(model))


def test_replaced_methods_of_an_instance_are_refused() -> None:
    for path, name in (
        ("", "step"), ("", "start"), ("core", "step"), ("core", "encode"), ("core.decoder.0",
            "step"),
        ("core.decoder.0.attention", "memory"), ("core.decoder.0.attention", "extend"), ("writer",
            "answer"),
        ("core.encoder.0.attention.read.score", "map_query"),
        ("core.encoder.0.attention.read.choice", "weights"),
        ("core.encoder.0.attention.read.choice", "scale_scores"), ("reader", "embed"), ("core",
            "form"),
    ):  # fmt: skip
        model = encoder_decoder()
        module = model.get_submodule(path)
        setattr(module, name, types.MethodType(lambda self, *inputs: None, module))
        assert f"has a replaced method {name}" in str(unsupported_reason(model))
