"""Recipe, seed and settings of a run, and the settings that affect its parameters."""

import dataclasses
from datetime import UTC, datetime
from typing import Any

from regard import __version__
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
class Origin:
    """Folder of another library that a run was imported from."""

    folder: str
    model_type: str
    size: int
    """Size of the files of its parameters in bytes."""
    weights: str
    """SHA-256 of these files."""
    base: str | None = None
    """Architecture of a model without a classifier: that of the run is new."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Identity of data: of a file, or of all files of a folder."""

    size: int
    modified: int
    """Time of the last modification in nanoseconds."""
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Content of run.json: recipe, seed and settings of a run, and its data."""

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
    origin: Origin | None = None
    """Folder that it was imported from, if it was not trained here."""
    data: dict[str, Source] = dataclasses.field(default_factory=dict)
    """Training and validation data of a run that started, by the name of its setting."""
    own: Any = dataclasses.field(default=None, compare=False, repr=False)
    """`Entry` of a recipe that the caller passed instead of a name; run.json does not hold it."""


def training_fingerprint(run: Run) -> dict[str, Any]:
    """Return the settings that affect the parameters, as JSON; of paths of data, their number.

    How bad lines are handled is not among them: the same data was read with `error` only if it has
    no bad line, and is refused with `error` if it has one.
    """
    settings = to_plain(run.config)
    settings.pop("decode", None)
    settings |= {"seed": run.seed, "train": run.config.train.training_fingerprint()}
    if run.init is not None:
        settings["init"] = run.init.weights
    data = {}
    for name, value in settings["data"].items():
        if not name.startswith(("test", "on_bad")):
            data[name] = len(_paths(name, value)) or value
    return settings | {"data": data}


def data_paths(run: Run) -> dict[str, str]:
    """Return the training and validation data by the name of its setting: data.train, data.val.0"""
    paths = {}
    for name, value in to_plain(run.config.data).items():
        paths |= _paths(name, value)
    return paths


def _paths(name: str, value: Any) -> dict[str, str]:
    """Return the paths in a setting, which holds a path, a list of paths, or something else."""
    if not name.startswith(("train", "val")):
        return {}
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list) and all(isinstance(path, str) for path in value):
        return {f"data.{name}.{number}": path for number, path in enumerate(value)}
    return {f"data.{name}": value} if isinstance(value, str) else {}
