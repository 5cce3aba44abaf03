"""Engines by name; the module of an engine is imported when it is first used."""

import importlib
import warnings
from typing import Any, Protocol, cast, runtime_checkable

import torch

from regard.engines.config import ENGINES, EngineConfig
from regard.engines.engine import Engine, on_device
from regard.engines.lowering import UnsupportedModelError, lower
from regard.engines.torch import TorchEngine
from regard.errors import UserError
from regard.layers.forms import TextForm
from regard.models.cores.transformer import Transformer
from regard.models.readers.tokens import TokenReader
from regard.ops.dispatch import absence

_REFERENCE, _FASTEST = "torch", "compiled"


class NotCachedError(Exception):
    """Compiled code cannot be cached here, so each process compiles it; the message names a
    remedy."""


@runtime_checkable
class EngineModule(Protocol):
    """Interface of the module of an engine."""

    LARGEST_ITEM: float
    """Largest item that the engine computes without an overflow that it does not report."""

    def unsupported_reason(self, form: TextForm) -> str | None:
        """Return why the engine cannot compute a form, as the end of a sentence, or None if it can.

        Does not import optional packages.
        """
        ...

    def create(
        self, form: TextForm, *, compute_type: str | None, threads: int, workers: int | None
    ) -> Engine:
        """Return an engine for a supported form, which the engine then owns.

        compute_type: None selects the default of the engine, whose outputs equal those of torch to
        rounding.
        threads:      total number of threads.
        workers:      number of batches decoded in parallel, which share the threads; None is chosen
        by the engine.
        Raises: UserError if a package is missing, or for an unsupported compute type, with the
                supported ones.
        """
        ...


def prepare(
    name: str,
    model: Any,
    *,
    compute_type: str | None = None,
    threads: int = 1,
    workers: int | None = None,
    cached_only: bool = False,
) -> Engine:
    """Return an engine for a trained model in eval mode.

    Engines are snapshots, which later changes of the model do not affect; only the torch engine
    runs the model itself.

    name: one of `regard.engines.config.ENGINES`, or auto: compiled if it supports the model, else
          torch, with a warning if compiled usually supports models of this kind.
    cached_only: with auto, raise NotCachedError where this process would compile loops for about 20
                 seconds, because
          they cannot be cached.
    Raises: UserError if there is no such engine, or if it does not support this model, with the
            reason and the engines that do; see also `EngineModule.create`.
    """
    if name not in ("auto", *ENGINES):
        raise UserError(f"engine must be one of auto, {', '.join(ENGINES)}, got {name!r}")
    EngineConfig(workers=workers)  # checks the number
    options = {"compute_type": compute_type, "workers": workers}
    if name == "auto":
        engine = _fastest(model, cached_only=cached_only, threads=threads, **options)
        return engine or TorchEngine(model, **options)
    if name == _REFERENCE:
        return TorchEngine(model, **options)
    try:
        return _snapshot(name, model, threads=threads, **options)
    except UnsupportedModelError as error:
        others = " or ".join(repr(other) for other in supporting_engines(model))
        raise UserError(
            f"engine {name!r} does not support this model: {error}. Use engine {others}."
        ) from error


def prefers_compiled(model: Any) -> bool:
    """Return True if auto chooses the compiled engine for models of this kind on this machine."""
    if not _is_usual(model) or absence() is not None:
        return False
    return bool(importlib.import_module(ENGINES[_FASTEST]).is_optimized_cpu())


def _is_usual(model: Any) -> bool:
    """Return True for models of a kind that the compiled engine usually supports, on a CPU."""
    core, reader = getattr(model, "core", None), getattr(model, "reader", None)
    if not isinstance(reader, TokenReader | None):
        return False
    return isinstance(core, Transformer) and all(
        weight.device.type == "cpu" for weight in core.parameters()
    )


def refusal_reason(name: str, model: Any) -> str | None:
    """Return why an engine does not support a model, as the end of a sentence; None if it does."""
    if name == _REFERENCE:
        return None
    if name == _FASTEST and (reason := absence()):
        return f"it needs compiled code, but {reason}"
    module = _engine_module(name)
    try:
        with on_device(torch.device("cpu")):
            lower(model, module.unsupported_reason, largest=module.LARGEST_ITEM)
    except UnsupportedModelError as error:
        return str(error)
    return None


def supporting_engines(model: Any) -> list[str]:
    """Return the names of the engines that support a model."""
    return [name for name in ENGINES if refusal_reason(name, model) is None]


def _fastest(model: Any, *, cached_only: bool, **settings: Any) -> Engine | None:
    """Return the compiled engine, the fastest with the outputs of torch; None if it does not
    support the model."""
    if _is_usual(model) and (reason := absence()):
        warnings.warn(f"engine 'torch' is used, which is slower, because {reason}", stacklevel=4)
    if not prefers_compiled(model):
        return None
    if cached_only and (reason := importlib.import_module(ENGINES[_FASTEST]).recompile_reason()):
        raise NotCachedError(reason)
    try:
        return _snapshot(_FASTEST, model, **settings)
    except UnsupportedModelError as error:
        warnings.warn(
            f"engine 'torch' is used, which is slower: engine {_FASTEST!r} does not support this "
            f"model: {error}",
            stacklevel=4,
        )
        return None


def _snapshot(name: str, model: Any, **settings: Any) -> Engine:
    if name == _FASTEST and (reason := absence()):
        raise UserError(
            f"engine {name!r} needs compiled code, but {reason}. Use engine {_REFERENCE!r}."
        )
    module = _engine_module(name)
    with on_device(torch.device("cpu")):
        form = lower(model, module.unsupported_reason, largest=module.LARGEST_ITEM)
        return module.create(form, **settings)


def _engine_module(name: str) -> EngineModule:
    return cast("EngineModule", importlib.import_module(ENGINES[name]))
