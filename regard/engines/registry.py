"""Engines by name; the module of each is imported only when it is asked for."""

import importlib
import warnings
from typing import Any, Protocol, cast, runtime_checkable

import torch

from regard.engines.config import ENGINES
from regard.engines.engine import Engine
from regard.engines.lowering import UnsupportedModelError, lower
from regard.engines.reference import TorchEngine
from regard.errors import UserError
from regard.layers.forms import TextForm
from regard.models.cores.transformer import TransformerCore

_REFERENCE, _FASTEST = "torch", "compiled"


@runtime_checkable
class Maker(Protocol):
    """Interface of the module of an engine that computes forms."""

    LARGEST_ITEM: float
    """Items beyond this may overflow without being noticed."""

    def unsupported(self, form: TextForm) -> str | None:
        """Return why the engine cannot compute a form, as the end of a sentence, or None if it can.

        Needs no optional package.
        """
        ...

    def create(self, form: TextForm, *, compute_type: str | None, threads: int, workers: int | None) -> Engine:
        """Return the engine of a form that is supported; the form is the engine's own.

        compute_type: None is the engine's own choice, whose outputs are torch's to rounding.
        threads:      processor threads in all; workers: batches at once that share them, None is the engine's choice.
        Raises: UserError if a package is missing, or for a compute type that does not exist here, with those that do.
        """
        ...


def prepare(
    name: str, model: Any, *, compute_type: str | None = None, threads: int = 1, workers: int | None = None
) -> Engine:
    """Return a snapshot of a trained model in eval mode, ready to decode: later changes of the model do not reach it.

    name: of `regard.engines.config.ENGINES`, or auto: compiled where it runs the model, else torch, with a warning if
          the model is of a kind that compiled usually runs. The torch engine alone is no copy but the model itself.
    Raises: UserError if there is no such engine, it cannot run this model (with the reason, and which can), or as
            `Maker.create`.
    """
    if name not in ("auto", *ENGINES):
        raise UserError(f"unknown engine {name!r}; the engines are auto, {', '.join(ENGINES)}")
    layout = {"compute_type": compute_type, "workers": workers}
    if name == "auto":
        return _fastest(model, threads=threads, **layout) or TorchEngine(model, **layout)
    if name == _REFERENCE:
        return TorchEngine(model, **layout)
    try:
        return _snapshot(name, model, threads=threads, **layout)
    except UnsupportedModelError as error:
        others = " or ".join(repr(other) for other in supporting(model))
        raise UserError(f"engine {name!r} does not support this model: {error}. Use engine {others}.") from error


def _fastest(model: Any, **settings: Any) -> Engine | None:
    """Return the fastest engine with torch's outputs that needs no other package; None if it does not run the model."""
    if not is_expected(model):
        return None
    try:
        return _snapshot(_FASTEST, model, **settings)
    except UnsupportedModelError as error:
        warnings.warn(
            f"engine 'torch' is used, which is slower: engine {_FASTEST!r} does not support this model: {error}. "
            "run.compile() tries again",
            stacklevel=4,
        )
        return None


def _snapshot(name: str, model: Any, **settings: Any) -> Engine:
    maker = _maker(name)
    with torch.device("cpu"):  # whatever the caller's default device is
        form = lower(model, maker.unsupported, largest=maker.LARGEST_ITEM)
        return maker.create(form, **settings)


def is_expected(model: Any) -> bool:
    """Return True if auto chooses the compiled engine for models of this kind on this machine."""
    core = getattr(model, "core", None)
    if not isinstance(core, TransformerCore) or any(weight.device.type != "cpu" for weight in core.parameters()):
        return False
    return bool(importlib.import_module(ENGINES[_FASTEST]).is_at_home())


def compiles_each_time() -> str | None:
    """Return why the compiled engine would compile its code in this process, which takes some 20 seconds, or None.

    The reason names what lets compiled code be kept, and is None once this process has compiled.
    """
    return importlib.import_module(ENGINES[_FASTEST]).compiles_each_time()


def refusal(name: str, model: Any) -> str | None:
    """Return why an engine cannot run a model, as the end of a sentence; None if it can."""
    if name == _REFERENCE:
        return None
    maker = _maker(name)
    try:
        with torch.device("cpu"):
            lower(model, maker.unsupported, largest=maker.LARGEST_ITEM)
    except UnsupportedModelError as error:
        return str(error)
    return None


def supporting(model: Any) -> list[str]:
    """Return the names of the engines that can run a model."""
    return [name for name in ENGINES if refusal(name, model) is None]


def _maker(name: str) -> Maker:
    return cast("Maker", importlib.import_module(ENGINES[name]))
