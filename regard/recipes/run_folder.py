"""Settings of a run folder (run.json), and which run may use the folder. (no torch)

    run.json   {"format_version", "recipe", "seed", "config", "regard", "created", "checksum"}

A folder belongs to the run whose settings its run.json holds. Training with the same settings resumes it; settings that
do not affect the parameters (length of training, decoding) may change, and so may the paths of the data, whose content
is compared instead (regard.recipes.learned_files). A run without a checkpoint is
replaced by one with other settings. Nothing else is ever overwritten. Hidden files (.gitignore, .DS_Store) are ignored
and left in place.

The checksum covers the whole file. After an intended edit, set "checksum" to the value that the error message states.
"""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from regard.errors import UserError
from regard.recipes import learned_files
from regard.recipes.base.run import Run, find_moved_data, parameter_settings, training_fingerprint
from regard.recipes.registry import RECIPES
from regard.settings.tree import apply_changes, find_differences, to_plain
from regard.system.files import read_json
from regard.system.fingerprints import add_checksum, verify_checksum
from regard.system.output_files import FOLDERS, check_no_link, claim_folder
from regard.system.writing import write_atomically

FORMAT_VERSION = 3
"""Version of the run folder's format; folders of another version are refused."""
_FILE = "run.json"
_KEYS = {"format_version": int, "recipe": str, "seed": int, "config": dict, "regard": str, "created": str}
_MAX_SHOWN = 5
_UNFINISHED = {".run.json.new", ".learned.json.new", ".report.json.new", ".learned.new"}
"""Temporary files that a killed process may have left behind."""
_RESULTS = ("model.safetensors", "report.json", "log.jsonl")
_TRAINING = {"log.jsonl", "tb", "checkpoints", "snapshots", ".model.safetensors.new"}
"""Files that training creates before its first checkpoint."""


def read_run(folder: str | Path) -> Run:
    """Read the run of a folder.

    Raises UserError, naming the file, if it is missing, damaged, or of another format version.
    """
    path = Path(folder) / _FILE
    if not path.is_file():
        if path.parent.is_file():
            raise UserError(f"{folder} is a file, expected a run folder; an archive must be unpacked first")
        problem = "is not a run folder: it has no run.json" if Path(folder).is_dir() else "does not exist"
        raise UserError(f"{folder} {problem}; create one with `regard train RECIPE --run {folder}`")
    content = _json(path)
    version = content.get("format_version")
    if type(version) is int and version != FORMAT_VERSION:
        age, remedy = ("an older", "train it again") if version < FORMAT_VERSION else ("a newer", "update regard")
        raise UserError(
            f"{folder} was written by {age} version of regard (format {version}, this one reads {FORMAT_VERSION}): "
            f"{remedy}"
        )
    for key, kind in _KEYS.items():
        if not isinstance(content.get(key), kind) or isinstance(content[key], bool):
            raise UserError(f"{path}: damaged: {key} must be {kind.__name__}, got {content.get(key)!r}")
    if content["recipe"] not in RECIPES:
        hint = "; if it is your own recipe, run its Python file instead of `regard`"
        raise UserError(f"{path}: recipe must be one of {', '.join(RECIPES)}, got {content['recipe']!r}{hint}")
    try:
        config = apply_changes(
            RECIPES[content["recipe"]].config(),
            content["config"],
            called=lambda name: f"{path}: config.{name}",
            complete=True,
        )
    except UserError as error:  # errors about several settings at once do not name the file
        raise error if str(path) in str(error) else UserError(f"{path}: config: {error}") from error
    verify_checksum(path, content)
    return Run(**{key: content[key] for key in ("recipe", "seed", "created", "regard")}, config=config)


def check_claim(folder: Path, run: Run) -> bool:
    """Return True if the folder already holds a run with these settings. Changes nothing.

    Raises UserError if it holds another run with a checkpoint, naming the differences, or files of something else.
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
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        names = [name for name in names if not (name.startswith(".") or _is_linked(folder / name))]
        if names:
            listing = ", ".join(names[:_MAX_SHOWN]) + (" ..." if len(names) > _MAX_SHOWN else "")
            raise UserError(f"{folder} holds files of something else ({listing}); choose another folder with --run")
        return False
    before = read_run(folder)
    is_same = before.recipe == run.recipe and not find_differences(
        training_fingerprint(before), training_fingerprint(run)
    )
    # Without a digest (a recipe that reads its files itself), data is the same only if its path is.
    if is_same and learned_files.can_compare(folder, find_moved_data(before, run)):
        return True
    if has_begun(folder) or not _is_all_known(folder):
        _refuse_another(folder, before, run)
    return False


def claim(folder: Path, run: Run) -> bool:
    """Claim the folder for this run. Return True if it already held a run with these settings.

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
    """Raise UserError if a file of the run is a symbolic link, or a folder of it links to files of something else."""
    for name in (_FILE, learned_files.FILE, *_RESULTS, *learned_files.list_learned_files(folder)):
        check_no_link(folder, name)
    for name in FOLDERS:
        claim_folder(folder / name)


def clean(folder: Path) -> None:
    """Remove the temporary files that a killed process left behind."""
    for name in _UNFINISHED:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def release(folder: Path) -> None:
    """Undo the claim of a run without a checkpoint: remove its settings and learned files."""
    assert not has_begun(folder)
    learned_files.discard(folder)
    (folder / _FILE).unlink(missing_ok=True)


def has_begun(folder: Path) -> bool:
    """Return True if the run has a checkpoint, its own or of a model that it trains first, or weights."""
    has_checkpoint = (any(folder.glob(pattern)) for pattern in ("checkpoints/step-*", "*/checkpoints/step-*"))
    return any(has_checkpoint) or (folder / "model.safetensors").exists()


def _is_all_known(folder: Path) -> bool:
    """Return True if a folder without a checkpoint holds only files that its run created, and hidden files."""
    known = {_FILE, learned_files.FILE, *learned_files.list_unchanged_files(folder), *_TRAINING}
    rest = [path for path in folder.iterdir() if path.name not in known and not path.name.startswith(".")]
    return all(
        path.is_dir() and not path.is_symlink() and {child.name for child in path.iterdir()} <= _TRAINING
        for path in rest
    )


def _is_linked(path: Path) -> bool:
    """Return True for a link to a folder on another disk, created before the run; `claim_folder` checks its target."""
    return path.name in FOLDERS and path.is_symlink()


def _refuse_another(folder: Path, before: Run, now: Run) -> NoReturn:
    if before.recipe != now.recipe:
        raise UserError(f"{folder} holds a run of recipe {before.recipe}, not {now.recipe}; choose another with --run")
    other = find_differences(training_fingerprint(before), training_fingerprint(now))
    given = find_differences(parameter_settings(before), parameter_settings(now))
    changes = {name: pair for name, pair in given.items() if name in other} or find_moved_data(before, now)
    rows = [f"{name} is {theirs!r} there and {mine!r} here" for name, (theirs, mine) in changes.items()]
    more = f" (and {len(rows) - _MAX_SHOWN} more)" if len(rows) > _MAX_SHOWN else ""
    raise UserError(
        f"{folder} holds another run of {now.recipe}: {'; '.join(rows[:_MAX_SHOWN])}{more}. "
        "Choose another folder with --run, or give the same settings to continue that run"
    )


def _write(folder: Path, run: Run) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content: Mapping[str, Any] = {
        "format_version": FORMAT_VERSION,
        "recipe": run.recipe,
        "seed": run.seed,
        "regard": run.regard,
        "created": run.created,
        "config": to_plain(run.config),
    }
    write_atomically(folder / _FILE, json.dumps(add_checksum(content), indent=2) + "\n")


def _json(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: damaged: must be a JSON object, got {type(content).__name__}")
    return content
