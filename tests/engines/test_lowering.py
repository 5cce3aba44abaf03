"""Every module, and whatever is done to it or to its class: seen, and refused by its name."""

import dataclasses
import inspect
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from regard.engines.compiled import engine as compiled
from regard.engines.lowering import KINDS, lowered
from regard.engines.watch import Watch
from regard.errors import UserError
from regard.layers.feedforward import FeedForward
from tests.engines.small import (
    SMALL,
    Change,
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
    "another buffer": lambda module: module.register_buffer("extra", torch.ones(1)),
    "another parameter": lambda module: module.register_parameter("extra", nn.Parameter(torch.ones(1))),
    "another part": lambda module: module.add_module("extra", nn.Identity()),
}


MODELS = [
    lambda: translator(dataclasses.replace(SMALL, layers=1)),
    lambda: translator(dataclasses.replace(SMALL, layers=1, positions="relative", norm="post")),
    lambda: speaker(dataclasses.replace(SMALL, layers=1, positions="learned")),
    lambda: speaker(dataclasses.replace(SMALL, layers=1, positions="alibi", score="dot")),
    lambda: speaker(dataclasses.replace(SMALL, layers=1, positions="none")),
]


@pytest.mark.parametrize("make", MODELS)
def test_whatever_is_done_to_any_module_is_seen_and_refused_by_its_name(make, unchecked) -> None:
    for change, work in CHANGES.items():
        for name, _ in make().named_modules():
            model = make()
            watch, module = Watch(model), model.get_submodule(name)
            if isinstance(module, nn.ModuleList) and change == "another part":
                continue  # a block more: see below
            assert watch.is_current()
            work(module)
            # What is added beside all that a class uses changes no answer.
            assert watch.is_current() == change.startswith("another"), (change, name)
            reason = lowered(model)
            assert isinstance(reason, str), (change, name)
            assert name in reason


def test_each_kind_of_module_is_tried() -> None:
    # nn.Linear is computed as ours is; no model here is built with it.
    assert {type(module) for make in MODELS for module in make().modules()} == set(KINDS) - {nn.Linear}


def methods() -> Iterator[tuple[type, str]]:
    for kind in dict.fromkeys(base for known in KINDS for base in known.__mro__[:-1]):
        for name, value in vars(kind).items():
            if inspect.isfunction(value) or isinstance(value, property | staticmethod | classmethod):
                yield kind, name


def test_a_method_that_is_replaced_in_a_class_is_refused(monkeypatch) -> None:
    model = translator(dataclasses.replace(SMALL, layers=1))
    engine = compiled.prepare(model)
    for kind, name in methods():
        written = vars(kind)[name]

        def replaced(*inputs: Any, written: Any = written, **settings: Any) -> Any:
            return written(*inputs, **settings)

        monkeypatch.setattr(kind, name, property(written.fget) if isinstance(written, property) else replaced)
        reason = lowered(model)
        assert isinstance(reason, str)
        assert f"{kind.__name__}.{name} is not the function" in reason
        with pytest.raises(UserError, match=f"{kind.__name__}.{name}"):
            engine.ready()
        monkeypatch.undo()
        assert engine.ready() is not None
    assert not isinstance(lowered(model), str)


def test_a_method_that_is_added_to_a_class_is_refused(monkeypatch) -> None:
    model = translator()
    monkeypatch.setattr(FeedForward, "__call__", lambda self, items: items, raising=False)
    assert "FeedForward.__call__" in str(lowered(model))


def test_hooks_of_all_modules_are_refused() -> None:
    model = translator()
    engine = compiled.prepare(model)
    taken = nn.modules.module.register_module_forward_hook(lambda *told: None)
    try:
        assert compiled.refusal(model) == "there are hooks on all modules"
        with pytest.raises(UserError, match="hooks on all modules"):
            engine.ready()
    finally:
        taken.remove()
    assert compiled.refusal(model) is None


def test_parametrized_weights_are_refused() -> None:
    class Doubled(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return 2 * weight

    for name, _ in [*translator().named_parameters()]:
        model = translator()
        owner, _, weight = name.rpartition(".")
        parametrize.register_parametrization(model.get_submodule(owner), weight, Doubled())
        assert owner in compiled.refusal(model)
    makers: list[Change] = [
        parametrizations.weight_norm, parametrizations.spectral_norm,
        lambda module: prune.random_unstructured(module, "weight", amount=0.5),
    ]  # fmt: skip
    for make in makers:
        model = translator()
        make(model.core.decoder[0].feedforward.expand)
        assert "core.decoder.0.feedforward.expand" in compiled.refusal(model)


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
        assert f"has a {name} of its own" in compiled.refusal(model)
