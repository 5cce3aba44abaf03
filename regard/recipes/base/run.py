"""Recipe, seed and settings of a run, and the settings that affect its parameters."""

import dataclasses
from datetime import UTC, datetime
from typing import Any

from regard import __version__
from regard.recipes.base.entry import Entry
from regard.settings.tree import to_plain

ARTIFACTS = "artifacts"
"""Folder in a run folder with what was computed from the training data."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Init:
    """Run whose parameters and tokenizers another one starts from."""

    folder: str
    weights: str
    """SHA-256 of its parameters."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Content of run.json: recipe, seed and settings of a run."""

    recipe: str
    seed: int
    config: Any
    created: str = dataclasses.field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds")
    )
    """Start of the run, UTC, ISO 8601."""
    regard: str = __version__
    """Version of regard that started it."""
    init: Init | None = None
    """Run whose parameters it started from, if any."""
    own: Entry | None = dataclasses.field(default=None, compare=False, repr=False)
    """Entry of a recipe that the caller passed instead of a name; run.json does not hold it."""


def training_fingerprint(run: Run) -> dict[str, Any]:
    """Return the settings that affect the parameters, as JSON; for paths of data, only their
    number."""
    settings = parameter_settings(run)
    return settings | {
        "data": {
            name: len(_paths(name, value)) or value for name, value in settings["data"].items()
        }
    }


def data_paths(run: Run) -> dict[str, str]:
    """Return the paths of training and validation data by the names of their settings: data.train,
    data.train.0, ..."""
    data = to_plain(run.config)["data"]
    return {key: path for name in data for key, path in _paths(name, data[name]).items()}


def parameter_settings(run: Run) -> dict[str, Any]:
    """Return the settings that affect the parameters, with the paths of data.

    How bad lines are handled is not among them: the same data was read with `error` only if it has
    no bad line, and is refused with `error` if it has one.
    """
    training = run.config.train.training_fingerprint()
    settings: dict[str, Any] = {"seed": run.seed} | to_plain(run.config) | {"train": training}
    settings |= {} if run.init is None else {"init": run.init.weights}
    unused = ("test", "on_bad")
    settings["data"] = {
        name: value for name, value in settings["data"].items() if not name.startswith(unused)
    }
    return {name: value for name, value in settings.items() if name != "decode"}


def _paths(name: str, value: Any) -> dict[str, str]:
    """Return the paths in a data setting, which holds a path, a list of paths, or something
    else."""
    if not name.startswith(("train", "val")):
        return {}
    if isinstance(value, list) and all(isinstance(path, str) for path in value):
        return {f"data.{name}.{number}": path for number, path in enumerate(value)}
    return {f"data.{name}": value} if isinstance(value, str) else {}
