"""From an engine's name to the engine; the module of each is imported only when it is asked for."""

import importlib
from typing import Any, Protocol, cast, runtime_checkable

from regard.engines.config import ENGINES
from regard.errors import UserError

__all__ = ["Maker", "prepare", "runs"]

_REFERENCE, _FASTEST = "torch", "compiled"


@runtime_checkable
class Maker(Protocol):
    """What the module of an engine holds."""

    def refusal(self, model: Any) -> str | None:
        """Why the engine cannot run a model, as the end of a sentence; None if it can. Needs no optional package."""
        ...

    def prepare(self, model: Any, *, compute_type: str | None, threads: int, workers: int | None) -> Any:
        """The engine (regard.engines.engine.Engine) of a model that is not refused.

        compute_type: None is the engine's own choice, whose outputs are torch's to rounding.
        threads:      processor threads in all; workers: batches at once that share them, None is the engine's choice.
        Raises: UserError if a package is missing, or for a compute type that does not exist here, with those that do.
        """
        ...


def prepare(
    name: str, model: Any, *, compute_type: str | None = None, threads: int = 1, workers: int | None = None
) -> Any:
    """The engine of this name for a trained model in eval mode.

    Raises: UserError if there is no such engine, it cannot run this model (with why, and what can), or as its module.
    """
    if name not in ("auto", *ENGINES):
        raise UserError(f"unknown engine {name!r}; the engines are auto, {', '.join(ENGINES)}")
    how = {"compute_type": compute_type, "threads": threads, "workers": workers}
    if name == "auto":
        engine = _maker(_chosen(model)).prepare(model, **how)
        engine.falls_back = True
        return engine
    if reason := _maker(name).refusal(model):
        raise UserError(f"engine {name} cannot run this model: {reason}; {' or '.join(runs(model))} can")
    return _maker(name).prepare(model, **how)


def _chosen(model: Any) -> str:
    """The fastest engine with torch's outputs that needs nothing besides."""
    fastest = importlib.import_module(ENGINES[_FASTEST])
    return _FASTEST if fastest.is_at_home() and fastest.refusal(model) is None else _REFERENCE


def runs(model: Any) -> list[str]:
    """The engines that can run a model."""
    return [name for name in ENGINES if _maker(name).refusal(model) is None]


def _maker(name: str) -> Maker:
    return cast("Maker", importlib.import_module(ENGINES[name]))
