"""Ways to run a trained model that are compared: each opens a run folder, and answers as `predict` does."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from regard.engines import config as engines
from regard.errors import UserError
from regard.recipes.kinds import nearest
from regard.recipes.task import Trained, load

REFERENCE = "torch"
"""What the others are compared with."""
ENGINES: dict[str, Callable[..., Trained]] = {name: partial(load, engine=name) for name in ("auto", *engines.ENGINES)}
"""By name, what opens a run folder: opener(folder, device=..., tell=...)."""


def opened_by(engine: str, folder: Path, *, device: str, tell: Callable[[str], None]) -> Trained:
    """The trained model of a run folder, run by this engine. Raises UserError for one that there is not."""
    if engine not in ENGINES:
        hint = nearest(engine, ENGINES) or f"; there are {', '.join(ENGINES)}"
        raise UserError(f"unknown engine {engine!r}{hint}")
    return ENGINES[engine](folder, device=device, tell=tell)
