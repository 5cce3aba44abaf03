"""Checkpoints of a run that may be killed at any moment.

    RUN/checkpoints/step-00001200/model.safetensors       the weights
                                  optimizer.safetensors   what Adam remembers
                                  ema.safetensors         the moving average, if there is one
                                  state.json              where the run stands, its settings, each file's
                                                          checksum, and its own
    RUN/snapshots/step-00001000.safetensors               weights as validated: of the best, and to be
                                                          averaged

A checkpoint is written beside its place, flushed to the disk, and renamed; older ones go only when it is
there. So there is always a complete one once there was one. A damaged one is passed over and kept, under the name
step-00001200.aside, with the snapshots that it needs and the run's weights, as model.safetensors.aside; nothing is
removed before an older one has been loaded. What has another name, or is in these folders beside our files, is never
touched; a symbolic link in the place of our files is refused. No file holds code: tensors are safetensors, the rest is
JSON.
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

from regard.checksums import file_checksum, sealed, unsealed
from regard.errors import UserError
from regard.files import check_file, flush_folder, read_json, write_atomically
from regard.run_files import check_no_link, claim_folder
from regard.train.directory import RunDirectory
from regard.train.progress import Progress
from regard.train.tensor_file import read_tensors, write_tensors
from regard.train.weights import publish

FORMAT = 2
"""Version of the layout; a checkpoint of a later one is refused. In version 1 state.json had no checksum."""

_NAME = re.compile(r"step-(\d{8,})")
_UNFINISHED = re.compile(r"step-\d{8,}\.(new|old|gone)")
_SNAPSHOT = re.compile(r"step-(\d{8,})\.safetensors")
# The last kind is what the safetensors library left behind where it wrote the files (regard 0.2.0).
_LEFT_OVER = re.compile(r"\.step-\d{8,}\.safetensors\.new|\.tmp[0-9A-Za-z]{6}")
_STATE = "state.json"
_WEIGHTS = "model.safetensors"
_TENSORS = ("model", "optimizer", "ema")
_OWN = {_STATE, *(f"{name}.safetensors" for name in _TENSORS)}


class CheckpointError(UserError):
    """A checkpoint cannot be used; the message names the file and says why."""


class _DamagedError(CheckpointError):
    """A file of the checkpoint is missing, cut off or altered: an older checkpoint may serve."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A complete checkpoint."""

    folder: Path
    progress: Progress
    settings: dict[str, Any]
    """What decided the weights: compared with the present run's."""
    log_bytes: int
    """How long log.jsonl was."""

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of one of its files: model, optimizer, ema."""
        return read_tensors(self.folder / f"{name}.safetensors")


class Store:
    """The checkpoints and snapshots of one run folder. Only the main process writes."""

    def __init__(self, directory: RunDirectory, *, keep: int):
        self._directory = directory
        self._keep = keep
        self._sums: dict[str, list[int]] = {}

    @property
    def _folder(self) -> Path:
        return self._directory.path

    def clean(self) -> None:
        """Remove what a killed process left half-written or half-removed."""
        self._directory.write(self._clean)

    def _clean(self, root: Path) -> None:
        for name in ("checkpoints", "snapshots"):
            claim_folder(root / name)
        for path in _listed(root / "checkpoints", _UNFINISHED):
            place = path.with_suffix("")
            if path.suffix != ".old" or self._is_complete(place):
                _remove(path)
            else:
                # Killed between the two renames of `save`: the old one is complete and has no successor.
                _set_aside(place)
                path.rename(place)
        for path in [*_listed(root / "snapshots", _LEFT_OVER), root / f".{_WEIGHTS}.new"]:
            if not path.is_dir():  # not ours
                path.unlink(missing_ok=True)

    def latest(self) -> Saved | None:
        """The last complete checkpoint, None if there is none yet.

        A damaged one is passed over with a warning. Raises CheckpointError if all are damaged, or if one is
        of a newer version.
        """
        damage, damaged = None, []
        for folder in reversed(self._all()):
            try:
                saved, sums = self._opened(folder)
            except _DamagedError as error:
                damage = damage or error
                damaged.append(folder.name)
                continue
            if damage:
                kept = f"{', '.join(damaged)} {'is' if len(damaged) == 1 else 'are'} kept as {damaged[0]}.aside"
                more = " and so on" if len(damaged) > 1 else ""
                more += f", {_WEIGHTS} as {_WEIGHTS}.aside" if (self._folder / _WEIGHTS).exists() else ""
                warnings.warn(f"{damage} Going on from {folder.name}; nothing is removed: {kept}{more}.", stacklevel=2)
            self._sums = sums
            return saved
        if damage:
            raise CheckpointError(
                f"{damage} No older checkpoint is complete; nothing was removed. Bring the file back as it was, or use "
                "another run folder to begin anew."
            )
        return None

    def accept(self, saved: Saved) -> None:
        """Go on from a checkpoint that has been loaded: set the damaged later ones aside, remove what is not needed."""

        def set_aside(root: Path) -> None:
            later = [folder for folder in _checkpoints_in(root) if _step_of(folder) > saved.progress.step]
            if later:  # the weights first: if this is cut off here, the next call still sees why they are to be kept
                _set_aside(root / _WEIGHTS)
            for folder in later:
                _set_aside(folder)

        self._directory.write(set_aside)
        self.prune(saved.progress.step)
        if saved.progress.best_step:
            self.publish(saved.progress.best_step)

    def snapshot(self, step: int) -> Path:
        """Where the weights that were validated after `step` are kept."""
        return self._folder / _snapshot_of(step)

    def keep_snapshot(self, step: int, tensors: Mapping[str, Tensor], *, ties: Mapping[str, str]) -> None:
        """Keep weights as they were validated; the next checkpoint that does not need them lets them go."""

        def write(root: Path) -> list[int]:
            path = root / _snapshot_of(step)
            claim_folder(path.parent)
            path.parent.mkdir(exist_ok=True)
            if path.is_dir():  # not ours
                _set_aside(path)
            return write_tensors(path, tensors, ties=ties)

        self._sums[_snapshot_of(step)] = self._directory.write(write)

    def publish(self, step: int) -> None:
        """Have the run's weights be those that were validated after `step`."""
        self._directory.write(lambda root: publish(root / _snapshot_of(step), root / _WEIGHTS))

    def save(
        self,
        progress: Progress,
        files: Mapping[str, Mapping[str, Tensor]],
        *,
        ties: Mapping[str, str],
        settings: Mapping[str, Any],
        log_bytes: int,
    ) -> None:
        """Write a checkpoint of whole tensors, by file name; then prune those that are no longer needed.

        Raises: UserError if the system cannot write; what there was stays then.
        """
        state = {"format": FORMAT, "progress": progress.to_json(), "settings": dict(settings), "log_bytes": log_bytes}
        sums = {name: self._sums[name] for name in self._snapshots_of(progress)}
        name = f"step-{progress.step:08d}"
        self._directory.write(lambda root: _save(root / "checkpoints" / name, files, state, ties=ties, sums=sums))
        self.prune(progress.step)

    def prune(self, step: int) -> None:
        """Remove all but the last checkpoints up to `step`, and the snapshots that none needs, set aside or not."""
        self._directory.write(lambda root: self._prune(root, step))

    def _prune(self, root: Path, step: int) -> None:
        for path in _listed(root / "checkpoints", _UNFINISHED):
            if path.suffix == ".old":
                _remove(path)
        folders = []
        for folder in _checkpoints_in(root):
            if _files_of(folder) is None:
                _set_aside(folder)
            elif _step_of(folder) <= step:
                folders.append(folder)
        for folder in folders[: -self._keep]:
            gone = folder.with_suffix(".gone")
            folder.rename(gone)
            _remove(gone)
        needed = {name for folder in folders[-self._keep :] for name in _files_of(folder) or ()}
        aside = [path for path in sorted((root / "checkpoints").glob("step-*.aside*")) if path.is_dir()]
        lost = [int(found[1]) for path in aside if _files_of(path) is None and (found := _NAME.match(path.name))]
        needed |= {name for path in aside for name in _files_of(path) or ()}
        for path in _listed(root / "snapshots", _SNAPSHOT):
            # Of a checkpoint that cannot say what it needs, whatever it may have needed is kept.
            is_lost = any(_step_of(path) <= other for other in lost)
            if f"snapshots/{path.name}" not in needed and not is_lost and not path.is_dir():
                path.unlink()

    def _opened(self, folder: Path) -> tuple[Saved, dict[str, list[int]]]:
        """A checkpoint whose files are all there as they were written, and the checksums it holds."""
        path = folder / _STATE
        for name in _OWN:
            check_no_link(folder, name)
        state = _state_of(path)
        version = state.get("format")
        if isinstance(version, int) and version > FORMAT:
            raise CheckpointError(
                f"{path} was written by a newer regard: its format is {version}, this one reads up to {FORMAT}."
            )
        try:
            state = unsealed(path, state, required=version == FORMAT)
            if set(state) != {"format", "progress", "settings", "log_bytes", "files"} or version not in (1, FORMAT):
                raise ValueError("it must hold format, progress, settings, log_bytes and files")
            progress = Progress.from_json(state["progress"])
            settings, log_bytes, sums = state["settings"], state["log_bytes"], state["files"]
            if not isinstance(settings, dict) or not isinstance(log_bytes, int) or log_bytes < 0:
                raise ValueError("settings must be an object, log_bytes a length")
            if progress.step != _step_of(folder):
                raise ValueError(f"it is of step {progress.step}")
            self._check_names(folder, progress, sums)
        except UserError as error:
            raise _DamagedError(f"{str(error).rstrip('.')}.") from error
        except (ValueError, TypeError) as error:
            raise _DamagedError(f"{path} is damaged: {error}.") from error
        for name, expected in sums.items():
            file = self._folder / name
            check_no_link(file.parent, file.name)
            if not file.exists():
                raise _DamagedError(f"{file} is missing.")
            try:
                # The length first: what grew to a hundred times its length need not be read.
                is_whole = check_file(file).st_size == expected[0] and file_checksum(file) == expected
            except (UserError, OSError) as error:
                raise _DamagedError(f"{file} is damaged: {error}") from error
            if not is_whole:
                raise _DamagedError(f"{file} is damaged: its length or checksum is not what was written.")
        return Saved(folder=folder, progress=progress, settings=settings, log_bytes=log_bytes), sums

    def _check_names(self, folder: Path, progress: Progress, sums: Any) -> None:
        """Raises ValueError unless there is a checksum of each file of a checkpoint, and of no other."""
        own = {_named(folder / f"{name}.safetensors") for name in _TENSORS}
        needed = {*self._snapshots_of(progress), *own} - {_named(folder / "ema.safetensors")}
        if not isinstance(sums, dict) or not needed <= set(sums) <= needed | own:
            raise ValueError(f"files must be {', '.join(sorted(needed))}")
        for name, pair in sums.items():
            if not (isinstance(pair, list) and len(pair) == 2 and all(type(number) is int for number in pair)):
                raise ValueError(f"files.{name} must be a length and a checksum")

    def _snapshots_of(self, progress: Progress) -> list[str]:
        """The snapshots that a run needs to go on, in order."""
        needed = {*progress.recent, *([progress.best_step] if progress.best_step else [])}
        return [_snapshot_of(step) for step in sorted(needed)]

    def _is_complete(self, folder: Path) -> bool:
        try:
            self._opened(folder)
        except CheckpointError:
            return False
        return True

    def _all(self) -> list[Path]:
        return _checkpoints_in(self._folder)


def _save(
    place: Path,
    files: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    *,
    ties: Mapping[str, str],
    sums: Mapping[str, list[int]],
) -> None:
    """Write a checkpoint beside its place, and move it there."""
    claim_folder(place.parent)
    unfinished, old = place.with_suffix(".new"), place.with_suffix(".old")
    sums = dict(sums)
    try:
        place.parent.mkdir(exist_ok=True)
        unfinished.mkdir(exist_ok=True)
        for name, tensors in files.items():
            path = unfinished / f"{name}.safetensors"
            written = write_tensors(path, tensors, ties=ties if name == "model" else None)
            sums[_named(place / path.name)] = written
        write_atomically(unfinished / _STATE, json.dumps(sealed({**state, "files": sums}), indent=1))
        if _is_own(place):
            place.rename(old)
        _set_aside(place)
        unfinished.rename(place)
        flush_folder(place.parent)
    except OSError as error:
        raise UserError(f"{place}: cannot be written: {error.strerror or error}.") from error
    finally:
        if unfinished.exists():
            _remove(unfinished)


def _checkpoints_in(root: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(filter(_is_own, _listed(root / "checkpoints", _NAME)), key=_step_of)


def _listed(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """What has such a name in one of a run's folders, in order. Raises UserError for a symbolic link."""
    if not folder.is_dir():
        return []
    paths = sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name))
    for path in paths:
        check_no_link(folder, path.name)
    return paths


def _snapshot_of(step: int) -> str:
    return f"snapshots/step-{step:08d}.safetensors"


def _named(path: Path) -> str:
    """The name of a file of a checkpoint, relative to the run."""
    return "/".join(path.parts[-3:])


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-").removesuffix(".safetensors"))


def _is_own(folder: Path) -> bool:
    """Whether a folder is a checkpoint, whole or not, and not something of another that has such a name."""
    return folder.is_dir() and any((folder / name).exists() for name in _OWN)


def _remove(folder: Path) -> None:
    """Remove a checkpoint's files; a folder that holds anything else stays, under its own name."""
    if not folder.is_dir():
        return
    for name in _OWN:
        for path in (folder / name, folder / f".{name}.new"):
            if path.is_file() or path.is_symlink():
                path.unlink()
    for path in folder.iterdir():
        if _LEFT_OVER.fullmatch(path.name) and path.is_file():
            path.unlink()
    try:
        folder.rmdir()
    except OSError:
        if not folder.with_suffix("").exists():
            folder.rename(folder.with_suffix(""))


def _set_aside(place: Path) -> None:
    """Give what is there a name under which nothing looks for it and nothing removes it."""
    if not place.exists():
        return
    names = [f"{place.name}.aside", *(f"{place.name}.aside-{number}" for number in range(2, 1000))]
    free = next(path for path in map(place.with_name, names) if not path.exists())
    place.rename(free)


def _files_of(folder: Path) -> list[str] | None:
    """The files that a checkpoint says it needs; None if it cannot say."""
    with suppress(CheckpointError):
        files = _state_of(folder / _STATE).get("files")
        return list(files) if isinstance(files, dict) else None
    return None


def _state_of(path: Path) -> dict[str, Any]:
    """What a state.json holds, which may be anything."""
    if not path.exists():
        raise _DamagedError(f"{path} is missing.")
    try:
        state = read_json(path)
    except UserError as error:
        raise _DamagedError(f"{str(error).rstrip('.')}.") from error
    if not isinstance(state, dict):
        raise _DamagedError(f"{path} is damaged: it holds no object.")
    return state
