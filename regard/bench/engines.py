"""Inference engines to compare: each loads a run folder."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from regard.engines import config as engines
from regard.errors import UserError
from regard.recipes.base.recipe import TrainedRun
from regard.recipes.load import load
from regard.settings.values import suggest

REFERENCE = "torch"
"""Engine that the others are compared with."""
ENGINES: dict[str, Callable[..., TrainedRun]] = {
    name: partial(load, engine=name) for name in ("auto", *engines.ENGINES)
}
"""Functions that load a run folder, by engine: loader(folder, device=..., notify=...)."""


def load_with_engine(engine: str, folder: Path, *, device: str, notify: Callable[[str], None]) -> TrainedRun:
    """Load the trained model of a run folder with an engine. Raises UserError for an unknown engine."""
    if engine not in ENGINES:
        hint = suggest(engine, ENGINES) or f"; the engines are {', '.join(ENGINES)}"
        raise UserError(f"unknown engine {engine!r}{hint}")
    return ENGINES[engine](folder, device=device, notify=notify)
