"""Checkpoints of a run that may be killed at any moment.

    RUN/checkpoints/step-00001200/model.safetensors       parameters and buffers
                                  optimizer.safetensors   optimizer state
                                  ema.safetensors         moving average, if there is one
                                  state.json              progress, settings, the fingerprint of
                                                          each file and its own checksum
    RUN/snapshots/step-00001000.safetensors               weights as validated: of the best
    validation, and of
                                                          the last ones, which are averaged at the
                                                          end

A checkpoint is written to a temporary folder, flushed to disk and renamed; older ones are removed
only afterwards. So once there is a complete checkpoint, there always is one. A damaged checkpoint
is skipped and kept as step-00001200.aside, with the snapshots it needs and the weights of the run
(model.safetensors.aside); nothing is removed before an older one has been loaded. Files of other
names in these folders are never touched; symbolic links in place of our files are refused. No file
holds code: tensors are safetensors, everything else is JSON.
"""

import json
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import UserError
from regard.system.files import check_file, read_json
from regard.system.fingerprints import add_checksum, is_fingerprint, is_unchanged, verify_checksum
from regard.system.lock import RunDirectory
from regard.system.output_files import check_no_link, claim_folder
from regard.system.writing import flush_folder, write_atomically
from regard.training.progress import Progress
from regard.training.tensors import publish, read_tensors, write_tensors

FORMAT = 4
"""Version of the format; checkpoints of another version are refused."""
_NAME = re.compile(r"step-(\d{8,})")
_UNFINISHED = re.compile(r"step-\d{8,}\.(new|old|gone)")
_SNAPSHOT = re.compile(r"step-(\d{8,})\.safetensors")
_TEMPORARY = re.compile(r"\.step-\d{8,}\.safetensors\.new")
_STATE = "state.json"
_WEIGHTS = "model.safetensors"
_TENSORS = ("model", "optimizer", "ema")
_FILES = {_STATE, *(f"{name}.safetensors" for name in _TENSORS)}


class CheckpointError(UserError):
    """Error for a checkpoint that cannot be used, with the file and the reason."""


class _DamagedError(CheckpointError):
    """Error for a checkpoint with a missing or damaged file; an older checkpoint may be usable."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Complete checkpoint."""

    folder: Path
    progress: Progress
    settings: dict[str, Any]
    """Settings that determine the weights; compared with those of the current run."""
    log_bytes: int
    """Length of log.jsonl in bytes."""

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of one of its files: model, optimizer or ema."""
        return read_tensors(self.folder / f"{name}.safetensors")


class CheckpointStore:
    """Checkpoints and snapshots in a run folder. Only the main process writes."""

    def __init__(self, directory: RunDirectory, *, keep: int):
        self._directory = directory
        self._keep = keep
        self._fingerprints: dict[str, str] = {}

    @property
    def _folder(self) -> Path:
        return self._directory.path

    def open(self) -> Checkpoint | None:
        """Remove what a killed process left partly written, and return the last checkpoint as
        `latest`.

        Raises: UserError for symbolic links; CheckpointError if there are weights, but no
                checkpoint.
        """
        check_no_link(self._folder, _WEIGHTS)
        claim_folder(self._folder / "tb")
        self._directory.write(self._clean)
        saved, weights = self.latest(), self._folder / _WEIGHTS
        if saved is None and weights.exists():
            raise CheckpointError(
                f"{weights} holds trained weights, but there is no checkpoint to resume from. To "
                f"start a new run, use "
                "another run folder, or remove this file."
            )
        return saved

    def _clean(self, root: Path) -> None:
        for name in ("checkpoints", "snapshots"):
            claim_folder(root / name)
        for path in _list_paths(root / "checkpoints", _UNFINISHED):
            folder = path.with_suffix("")
            if path.suffix != ".old" or self._is_complete(folder):
                _remove(path)
            else:
                # Killed between the two renames of `save`: the old one is complete and has no
                # successor.
                _set_aside(folder)
                path.rename(folder)
        for path in [*_list_paths(root / "snapshots", _TEMPORARY), root / f".{_WEIGHTS}.new"]:
            if not path.is_dir():  # not written by us
                path.unlink(missing_ok=True)

    def latest(self) -> Checkpoint | None:
        """Return the last complete checkpoint, or None if there is none yet.

        Damaged checkpoints are skipped with a warning. Raises CheckpointError if all are damaged,
        or if one has a newer format.
        """
        damage, damaged = None, []
        for folder in reversed(_checkpoints_in(self._folder)):
            try:
                saved, fingerprints = self._open(folder)
            except _DamagedError as error:
                damage = damage or error
                damaged.append(folder.name)
                continue
            if damage:
                moved = f"{', '.join(damaged)} {'is' if len(damaged) == 1 else 'are'} kept as {damaged[0]}.aside"
                more = " and so on" if len(damaged) > 1 else ""
                more += (
                    f", {_WEIGHTS} as {_WEIGHTS}.aside"
                    if (self._folder / _WEIGHTS).exists()
                    else ""
                )
                warnings.warn(
                    f"{damage} Resuming from {folder.name}; nothing is removed: {moved}{more}.",
                    stacklevel=2,
                )
            self._fingerprints = fingerprints
            return saved
        if damage:
            raise CheckpointError(
                f"{damage} No older checkpoint is complete; nothing was removed. Restore the file, "
                f"or use another run "
                "folder to start a new run."
            )
        return None

    def accept(self, saved: Checkpoint) -> None:
        """Continue from a loaded checkpoint: set damaged later ones aside and remove files that are
        not needed."""

        def set_aside(root: Path) -> None:
            later = [
                folder for folder in _checkpoints_in(root) if _step_of(folder) > saved.progress.step
            ]
            if (
                later
            ):  # the weights first: if the process is killed here, the next call repeats this
                _set_aside(root / _WEIGHTS)
            for folder in later:
                _set_aside(folder)

        self._directory.write(set_aside)
        self.prune(saved.progress.step)
        if saved.progress.best_step:
            self.publish(saved.progress.best_step)

    def snapshot_path(self, step: int) -> Path:
        """Return the path of the weights that were validated after `step`."""
        return self._folder / _snapshot_name(step)

    def save_snapshot(
        self, step: int, tensors: Mapping[str, Tensor], *, ties: Mapping[str, str]
    ) -> None:
        """Save validated weights; they are removed with the first checkpoint that does not need
        them."""

        def write(root: Path) -> str:
            path = root / _snapshot_name(step)
            claim_folder(path.parent)
            path.parent.mkdir(exist_ok=True)
            if path.is_dir():  # not written by us
                _set_aside(path)
            return write_tensors(path, tensors, ties=ties)

        self._fingerprints[_snapshot_name(step)] = self._directory.write(write)

    def publish(self, step: int) -> None:
        """Make the weights that were validated after `step` the weights of the run
        (model.safetensors)."""
        self._directory.write(lambda root: publish(root / _snapshot_name(step), root / _WEIGHTS))

    def save(
        self,
        progress: Progress,
        files: Mapping[str, Mapping[str, Tensor]],
        *,
        ties: Mapping[str, str],
        settings: Mapping[str, Any],
        log_bytes: int,
    ) -> None:
        """Write a checkpoint of whole tensors, by file name; then remove those that are no longer
        needed.

        Raises: UserError if a file cannot be written; existing checkpoints stay as they are.
        """
        state = {
            "format": FORMAT,
            "progress": progress.to_json(),
            "settings": dict(settings),
            "log_bytes": log_bytes,
        }
        fingerprints = {name: self._fingerprints[name] for name in self._snapshots_of(progress)}
        name = f"step-{progress.step:08d}"
        self._directory.write(
            lambda root: _save(
                root / "checkpoints" / name, files, state, ties=ties, fingerprints=fingerprints
            )
        )
        self.prune(progress.step)

    def prune(self, step: int) -> None:
        """Remove all but the last checkpoints up to `step`, and the snapshots that no checkpoint
        needs.

        Checkpoints that were set aside also keep the snapshots they need.
        """
        self._directory.write(lambda root: self._prune(root, step))

    def _prune(self, root: Path, step: int) -> None:
        for path in _list_paths(root / "checkpoints", _UNFINISHED):
            if path.suffix == ".old":
                _remove(path)
        folders = []
        for folder in _checkpoints_in(root):
            if _files_of(folder) is None:
                _set_aside(folder)
            elif _step_of(folder) <= step:
                folders.append(folder)
        for folder in folders[: -self._keep]:
            removed = folder.with_suffix(".gone")
            folder.rename(removed)
            _remove(removed)
        needed = {name for folder in folders[-self._keep :] for name in _files_of(folder) or ()}
        aside = [
            path for path in sorted((root / "checkpoints").glob("step-*.aside*")) if path.is_dir()
        ]
        unknown = [
            int(match[1])
            for path in aside
            if _files_of(path) is None and (match := _NAME.match(path.name))
        ]
        needed |= {name for path in aside for name in _files_of(path) or ()}
        for path in _list_paths(root / "snapshots", _SNAPSHOT):
            # If the files that a checkpoint needs are unknown, keep all snapshots that it may need.
            may_be_needed = any(_step_of(path) <= step for step in unknown)
            if f"snapshots/{path.name}" not in needed and not may_be_needed and not path.is_dir():
                path.unlink()

    def _open(self, folder: Path) -> tuple[Checkpoint, dict[str, str]]:
        """Return a checkpoint and the fingerprints of its files, after checking that they are as
        they were written."""
        path = folder / _STATE
        for name in _FILES:
            check_no_link(folder, name)
        state = _read_state(path)
        version = state.get("format")
        if type(version) is int and version > FORMAT:
            raise CheckpointError(
                f"{path} was written by a newer version of regard (format {version}, this one "
                f"reads {FORMAT}): update "
                "regard."
            )
        if version != FORMAT:
            raise _DamagedError(
                f"{path} is damaged, or was written by an older version of regard: format must be "
                f"{FORMAT}, "
                f"got {version}."
            )
        try:
            state = verify_checksum(path, state)
            if set(state) != {"format", "progress", "settings", "log_bytes", "files"}:
                raise ValueError("it must hold format, progress, settings, log_bytes and files")
            progress = Progress.from_json(state["progress"])
            settings, log_bytes, fingerprints = (
                state["settings"],
                state["log_bytes"],
                state["files"],
            )
            if not isinstance(settings, dict) or not isinstance(log_bytes, int) or log_bytes < 0:
                raise ValueError("settings must be an object and log_bytes a length")
            if progress.step != _step_of(folder):
                raise ValueError(f"it holds step {progress.step}")
            self._check_names(folder, progress, fingerprints)
        except UserError as error:
            raise _DamagedError(f"{str(error).rstrip('.')}.") from error
        except (ValueError, TypeError) as error:
            raise _DamagedError(f"{path} is damaged: {error}.") from error
        for name, expected in fingerprints.items():
            file = self._folder / name
            check_no_link(file.parent, file.name)
            if not file.exists():
                raise _DamagedError(f"{file} is missing.")
            try:
                check_file(file)
                is_intact = is_unchanged(file, expected)
            except (UserError, OSError) as error:
                raise _DamagedError(f"{file} is damaged: {error}") from error
            if not is_intact:
                raise _DamagedError(f"{file} is damaged: its length or checksum does not match.")
        return Checkpoint(
            folder=folder, progress=progress, settings=settings, log_bytes=log_bytes
        ), fingerprints

    def _check_names(self, folder: Path, progress: Progress, fingerprints: Any) -> None:
        """Raise ValueError unless there is a fingerprint of each file of a checkpoint, and of no
        other."""
        own = {_relative_name(folder / f"{name}.safetensors") for name in _TENSORS}
        needed = {*self._snapshots_of(progress), *own} - {
            _relative_name(folder / "ema.safetensors")
        }
        if not isinstance(fingerprints, dict) or not needed <= set(fingerprints) <= needed | own:
            raise ValueError(f"files must be {', '.join(sorted(needed))}")
        for name, value in fingerprints.items():
            if not is_fingerprint(value):
                raise ValueError(f"files.{name} must be a fingerprint, LENGTH:DIGEST")

    def _snapshots_of(self, progress: Progress) -> list[str]:
        """Return the names of the snapshots that are needed to resume, in order."""
        needed = {
            *progress.recent_validations,
            *([progress.best_step] if progress.best_step else []),
        }
        return [_snapshot_name(step) for step in sorted(needed)]

    def _is_complete(self, folder: Path) -> bool:
        try:
            self._open(folder)
        except CheckpointError:
            return False
        return True


def check_settings(saved: Checkpoint, settings: Mapping[str, Any]) -> None:
    """Check that a checkpoint was written with the same settings.

    Raises: CheckpointError with each setting that differs.
    """
    current = _flatten(json.loads(json.dumps(settings)))
    previous = _flatten(saved.settings)
    names = [*previous, *(name for name in current if name not in previous)]
    changes = [
        f"{name} was {previous.get(name, 'absent')!r}, is {current.get(name, 'absent')!r}"
        for name in names
        if name not in previous or name not in current or previous[name] != current[name]
    ]
    if changes:
        raise CheckpointError(
            f"{saved.folder} belongs to a run with other settings: {'; '.join(changes)}. "
            "Use the same settings to resume it, or another folder to start a new run."
        )


def _save(
    folder: Path,
    files: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    *,
    ties: Mapping[str, str],
    fingerprints: Mapping[str, str],
) -> None:
    """Write a checkpoint to a temporary folder and rename it."""
    claim_folder(folder.parent)
    unfinished, old = folder.with_suffix(".new"), folder.with_suffix(".old")
    fingerprints = dict(fingerprints)
    try:
        folder.parent.mkdir(exist_ok=True)
        unfinished.mkdir(exist_ok=True)
        for name, tensors in files.items():
            path = unfinished / f"{name}.safetensors"
            fingerprint = write_tensors(path, tensors, ties=ties if name == "model" else None)
            fingerprints[_relative_name(folder / path.name)] = fingerprint
        write_atomically(
            unfinished / _STATE,
            json.dumps(add_checksum({**state, "files": fingerprints}), indent=1),
        )
        if _is_checkpoint(folder):
            folder.rename(old)
        _set_aside(folder)
        unfinished.rename(folder)
        flush_folder(folder.parent)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or error}.") from error
    finally:
        if unfinished.exists():
            _remove(unfinished)


def _checkpoints_in(root: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    return sorted(filter(_is_checkpoint, _list_paths(root / "checkpoints", _NAME)), key=_step_of)


def remove_checkpoints(root: Path) -> None:
    """Remove all checkpoints and snapshots of a run, but those that were set aside."""
    for name, pattern in (("snapshots", _SNAPSHOT), ("checkpoints", _NAME)):
        for path in _list_paths(root / name, pattern):
            if path.is_dir():
                _remove(path)
            else:
                path.unlink()
        with suppress(OSError):  # holds other files, or does not exist
            (root / name).rmdir()


def _list_paths(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """Return the paths in a folder of the run whose names match, in order. Raises UserError for a
    symbolic link."""
    if not folder.is_dir():
        return []
    paths = sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name))
    for path in paths:
        check_no_link(folder, path.name)
    return paths


def _snapshot_name(step: int) -> str:
    return f"snapshots/step-{step:08d}.safetensors"


def _relative_name(path: Path) -> str:
    """Return the name of a file of a checkpoint, relative to the run."""
    return "/".join(path.parts[-3:])


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-").removesuffix(".safetensors"))


def _is_checkpoint(folder: Path) -> bool:
    """Return True if a folder is a checkpoint, complete or not, and not an unrelated folder of that
    name."""
    return folder.is_dir() and any((folder / name).exists() for name in _FILES)


def _remove(folder: Path) -> None:
    """Remove the files of a checkpoint; a folder that holds other files stays, under its own
    name."""
    if not folder.is_dir():
        return
    for name in _FILES:
        for path in (folder / name, folder / f".{name}.new"):
            if path.is_file() or path.is_symlink():
                path.unlink()
    for path in folder.iterdir():
        if _TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink()
    try:
        folder.rmdir()
    except OSError:
        if not folder.with_suffix("").exists():
            folder.rename(folder.with_suffix(""))


def _set_aside(path: Path) -> None:
    """Rename a file or folder, if it exists, so that it is neither loaded nor removed."""
    if not path.exists():
        return
    names = [f"{path.name}.aside", *(f"{path.name}.aside-{number}" for number in range(2, 1000))]
    free = next(other for other in map(path.with_name, names) if not other.exists())
    path.rename(free)


def _files_of(folder: Path) -> list[str] | None:
    """Return the files that a checkpoint needs according to its state.json; None if that cannot be
    read."""
    with suppress(CheckpointError):
        files = _read_state(folder / _STATE).get("files")
        return list(files) if isinstance(files, dict) else None
    return None


def _read_state(path: Path) -> dict[str, Any]:
    """Return the content of a state.json, unchecked except that it is an object."""
    if not path.exists():
        raise _DamagedError(f"{path} is missing.")
    try:
        state = read_json(path)
    except UserError as error:
        raise _DamagedError(f"{str(error).rstrip('.')}.") from error
    if not isinstance(state, dict):
        raise _DamagedError(f"{path} is damaged: it must hold an object.")
    return state


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one dictionary with dotted names."""
    flat = {}
    for name, value in values.items():
        path = f"{prefix}.{name}" if prefix else name
        flat |= _flatten(value, path) if isinstance(value, dict) and value else {path: value}
    return flat
