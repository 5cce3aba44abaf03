"""What a run folder says of itself: run.json, and who may train in it. (no torch)

    run.json   {"format_version", "recipe", "seed", "config", "regard", "created", "checksum"}

A folder belongs to the run whose settings its run.json holds. The same settings go on with it; those that do
not decide the weights (how long, how to decode) may change, and so may the paths of its data, whose content is
compared instead (regard.recipes.learned). A run that never came to a checkpoint has nothing to lose:
other settings may take its folder. Nothing else is ever overwritten. Hidden files (.gitignore, .DS_Store)
do not count: they are left where they are.

The checksum is over all of it, since a setting that is read wrongly makes other answers. Who edits the file on purpose
removes "checksum"; files of earlier versions have none.
"""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from regard import __version__
from regard.checksums import sealed, unsealed
from regard.errors import UserError
from regard.files import read_json, write_atomically
from regard.recipes import learned
from regard.recipes.config import AnyConfig
from regard.recipes.registry import RECIPES
from regard.recipes.settings import changed, differences, plain
from regard.run_files import FOLDERS, check_no_link, claim_folder

FORMAT_VERSION = 1
"""Raised when a run folder changes so that an older version could not read it."""

_FILE = "run.json"
_KEYS = {"format_version": int, "recipe": str, "seed": int, "config": dict, "regard": str, "created": str}
_MAX_SHOWN = 5
_UNFINISHED = {".run.json.new", ".learned.json.new", ".report.json.new", ".learned.new"}
"""What a process that was killed may have left half-written."""
_RESULTS = ("model.safetensors", "report.json", "log.jsonl")
_TRAINING = {"log.jsonl", "tb", "checkpoints", "snapshots", ".model.safetensors.new"}
"""What training makes in a folder before its first checkpoint."""


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
        if path.parent.is_file():
            raise UserError(f"{folder} is a file, expected a run folder; an archive must be unpacked first")
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
    try:
        config = changed(
            RECIPES[content["recipe"]].config(),
            content["config"],
            called=lambda name: f"{path}: config.{name}",
            complete=True,
        )
    except UserError as error:  # a rule about several settings names none of them, nor the file
        raise error if str(path) in str(error) else UserError(f"{path}: config: {error}") from error
    unsealed(path, content)
    return Run(**{key: content[key] for key in ("recipe", "seed", "created", "regard")}, config=config)


def check_claim(folder: Path, run: Run) -> bool:
    """Whether a run of these settings is in the folder already; changes nothing.

    Raises UserError if it holds another run that came to a checkpoint, naming what differs, or files of someone else's.
    """
    for path in (folder, *folder.parents):
        if path.is_symlink() and not path.exists():
            raise UserError(
                f"{path} is a symbolic link to {path.readlink()}, which does not exist: make that folder, or choose "
                "another with --run"
            )
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder for a run; choose another with --run")
    if not (folder / _FILE).exists():
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        found = [name for name in found if not (name.startswith(".") or _is_linked(folder / name))]
        if found:
            shown = ", ".join(found[:_MAX_SHOWN]) + (" ..." if len(found) > _MAX_SHOWN else "")
            raise UserError(f"{folder} holds files of something else ({shown}); choose another with --run")
        return False
    before = read_run(folder)
    is_same = before.recipe == run.recipe and not differences(decisive(before), decisive(run))
    # Where there is no digest (a recipe that reads its files itself), only the same path is the same data.
    if is_same and learned.can_compare(folder, moved(before, run)):
        return True
    if has_begun(folder) or not _is_all_known(folder):
        _refuse_another(folder, before, run)
    return False


def claim(folder: Path, run: Run) -> bool:
    """Make a folder this run's own, or find that it is; True if a run of these settings was there already.

    Raises UserError as `check_claim`.
    """
    folder = Path(folder)
    if not check_claim(folder, run):
        release(folder)
        _write(folder, run)
        return False
    before = read_run(folder)
    if before.config != run.config:
        _write(folder, dataclasses.replace(before, config=run.config))
    return True


def check_own_files(folder: Path) -> None:
    """Raise UserError if a file of the run is a symbolic link, or a folder of it a link to files of something else."""
    for name in (_FILE, learned.FILE, *_RESULTS, *learned.learned_files(folder)):
        check_no_link(folder, name)
    for name in FOLDERS:
        claim_folder(folder / name)


def clean(folder: Path) -> None:
    """Remove what a process that was killed left half-written."""
    for name in _UNFINISHED:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def release(folder: Path) -> None:
    """Undo the claim of a run that never came to a checkpoint: remove its settings and what it learned."""
    assert not has_begun(folder)
    learned.discard(folder)
    (folder / _FILE).unlink(missing_ok=True)


def has_begun(folder: Path) -> bool:
    """Whether a run came to a checkpoint, its own or one of what it trains first, or to weights."""
    found = (any(folder.glob(pattern)) for pattern in ("checkpoints/step-*", "*/checkpoints/step-*"))
    return any(found) or (folder / "model.safetensors").exists()


def _is_all_known(folder: Path) -> bool:
    """Whether a folder whose run has not begun holds nothing but what that run made, and hidden files."""
    known = {_FILE, learned.FILE, *learned.unchanged_files(folder), *_TRAINING}
    rest = [path for path in folder.iterdir() if path.name not in known and not path.name.startswith(".")]
    return all(
        path.is_dir() and not path.is_symlink() and {one.name for one in path.iterdir()} <= _TRAINING for path in rest
    )


def _is_linked(path: Path) -> bool:
    """Return True for a link to a folder on another disk, made before the run began; `claim_folder` checks that."""
    return path.name in FOLDERS and path.is_symlink()


def _refuse_another(folder: Path, before: Run, now: Run) -> NoReturn:
    if before.recipe != now.recipe:
        raise UserError(f"{folder} holds a run of recipe {before.recipe}, not {now.recipe}; choose another with --run")
    other = differences(decisive(before), decisive(now))
    given = differences(_settings(before), _settings(now))
    found = {name: pair for name, pair in given.items() if name in other} or moved(before, now)
    rows = [f"{name} is {theirs!r} there and {mine!r} here" for name, (theirs, mine) in found.items()]
    more = f" (and {len(rows) - _MAX_SHOWN} more)" if len(rows) > _MAX_SHOWN else ""
    raise UserError(
        f"{folder} holds another run of {now.recipe}: {'; '.join(rows[:_MAX_SHOWN])}{more}. "
        "Choose another folder with --run, or give the same settings to go on with that run"
    )


def decisive(run: Run) -> dict[str, Any]:
    """The settings that decide the weights, as JSON holds them; for a path of data, only that there is one."""
    settings = _settings(run)
    return settings | {"data": {name: len(_paths(name, value)) or value for name, value in settings["data"].items()}}


def sources(run: Run) -> dict[str, str]:
    """The paths of training and validation data, by the names of their settings: data.train, data.train.0, ..."""
    data = plain(run.config)["data"]
    return {key: path for name in data for key, path in _paths(name, data[name]).items()}


def moved(before: Run, now: Run) -> dict[str, tuple[str, str]]:
    """By the name of its setting, the path of data that was given and the one that is given, where they differ."""
    then, here = sources(before), sources(now)
    return {name: (then[name], here[name]) for name in then if name in here and then[name] != here[name]}


def _settings(run: Run) -> dict[str, Any]:
    """The settings that decide the weights, with the paths of data."""
    settings: dict[str, Any] = {"seed": run.seed} | plain(run.config)
    settings["train"] = run.config.train.decisive()
    settings["data"] = {name: value for name, value in settings["data"].items() if not name.startswith("test")}
    return {name: value for name, value in settings.items() if name != "decode"}


def _paths(name: str, value: Any) -> dict[str, str]:
    """The paths in a setting of data, which is one, a list of them, or something else."""
    if not name.startswith(("train", "val")):
        return {}
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return {f"data.{name}.{number}": one for number, one in enumerate(value)}
    return {f"data.{name}": value} if isinstance(value, str) else {}


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
    write_atomically(folder / _FILE, json.dumps(sealed(content), indent=2) + "\n")


def _json(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: damaged: must be a JSON object, but is {type(content).__name__}")
    return content
