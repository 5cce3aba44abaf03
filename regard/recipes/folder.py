"""What a run folder says of itself: run.json, and who may train in it. (no torch)

    run.json   {"format_version", "recipe", "seed", "config", "regard", "created"}

A folder belongs to the run whose settings its run.json holds. The same settings go on with it; those that do
not decide the weights (how long, how to decode) may change. Nothing else is ever overwritten.
"""

import dataclasses
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from regard import __version__
from regard.errors import UserError
from regard.files import read_json, write_atomically
from regard.recipes.config import AnyConfig
from regard.recipes.registry import RECIPES
from regard.recipes.settings import changed, differences, plain

__all__ = ["FORMAT_VERSION", "Run", "claim", "decisive", "read_run"]

FORMAT_VERSION = 1
"""Raised when a run folder changes so that an older version could not read it."""

_FILE = "run.json"
_KEYS = {"format_version": int, "recipe": str, "seed": int, "config": dict, "regard": str, "created": str}
_MAX_SHOWN = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What run.json holds."""

    recipe: str
    seed: int
    config: AnyConfig
    created: str = dataclasses.field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    """When the run began, UTC, ISO 8601."""
    regard: str = __version__
    """The version that began it."""


def read_run(folder: str | Path) -> Run:
    """The run that a folder holds.

    Raises UserError, naming the file, if there is none, it is damaged, or from a newer version.
    """
    path = Path(folder) / _FILE
    if not path.is_file():
        what = "is no run folder: it holds no run.json" if Path(folder).is_dir() else "does not exist"
        raise UserError(f"{folder} {what}; `regard train RECIPE --run {folder}` makes one")
    content = _json(path)
    version = content.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        made_by = f" (regard {content['regard']})" if isinstance(content.get("regard"), str) else ""
        raise UserError(
            f"{path}: has format_version {version}{made_by}, from a newer regard; "
            f"this one ({__version__}) reads up to {FORMAT_VERSION}"
        )
    for key, kind in _KEYS.items():
        if not isinstance(content.get(key), kind) or isinstance(content[key], bool):
            raise UserError(f"{path}: damaged: {key} must be {kind.__name__}, but is {content.get(key)!r}")
    if version != FORMAT_VERSION:
        raise UserError(f"{path}: damaged: format_version must be {FORMAT_VERSION}, but is {version}")
    if content["recipe"] not in RECIPES:
        own = "; if it is your own, run the file that holds it instead of `regard`"
        raise UserError(f"{path}: recipe {content['recipe']!r} is none of {', '.join(RECIPES)}{own}")
    config = changed(
        RECIPES[content["recipe"]].config(),
        content["config"],
        called=lambda name: f"{path}: config.{name}",
        complete=True,
    )
    return Run(**{key: content[key] for key in ("recipe", "seed", "created", "regard")}, config=config)


def claim(folder: Path, run: Run) -> bool:
    """Make a folder this run's own, or find that it is; True if a run of these settings was there already.

    Raises UserError if it holds another run, naming what differs, or files of someone else's.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder for a run; choose another with --run")
    if not (folder / _FILE).exists():
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        found = [name for name in found if not name.startswith(f".{_FILE}")]
        if found:
            shown = ", ".join(found[:_MAX_SHOWN]) + (" ..." if len(found) > _MAX_SHOWN else "")
            raise UserError(f"{folder} holds files of something else ({shown}); choose another with --run")
        _write(folder, run)
        return False
    before = read_run(folder)
    _refuse_another(folder, before, run)
    if before.config != run.config:
        _write(folder, dataclasses.replace(before, config=run.config))
    return True


def _refuse_another(folder: Path, before: Run, now: Run) -> None:
    if before.recipe != now.recipe:
        raise UserError(f"{folder} holds a run of recipe {before.recipe}, not {now.recipe}; choose another with --run")
    found = differences(decisive(before), decisive(now))
    if not found:
        return
    rows = [f"{name} is {theirs!r} there and {mine!r} here" for name, (theirs, mine) in found.items()]
    more = f" (and {len(rows) - _MAX_SHOWN} more)" if len(rows) > _MAX_SHOWN else ""
    raise UserError(
        f"{folder} holds another run of {now.recipe}: {'; '.join(rows[:_MAX_SHOWN])}{more}. "
        "Choose another folder with --run, or give the same settings to go on with that run"
    )


def decisive(run: Run) -> dict[str, Any]:
    """The settings that decide the weights, as JSON holds them."""
    settings: dict[str, Any] = {"seed": run.seed} | plain(run.config)
    settings["train"] = run.config.train.decisive()
    settings["data"] = {name: value for name, value in settings["data"].items() if not name.startswith("test")}
    return {name: value for name, value in settings.items() if name != "decode"}


def _write(folder: Path, run: Run) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content: Mapping[str, Any] = {
        "format_version": FORMAT_VERSION,
        "recipe": run.recipe,
        "seed": run.seed,
        "regard": run.regard,
        "created": run.created,
        "config": plain(run.config),
    }
    write_atomically(folder / _FILE, json.dumps(content, indent=2) + "\n")


def _json(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: damaged: must be a JSON object, but is {type(content).__name__}")
    return content
