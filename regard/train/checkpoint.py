"""Checkpoints of a run that may be killed at any moment.

    RUN/checkpoints/step-00001200/model.safetensors       the weights
                                  optimizer.safetensors   what Adam remembers
                                  ema.safetensors         the moving average, if there is one
                                  state.json              where the run stands, its settings, each file's
                                                          checksum
    RUN/snapshots/step-00001000.safetensors               weights as validated: of the best, and to be
                                                          averaged

A checkpoint is written beside its place, flushed to the disk, and renamed; older ones go only when it is
there. So there is always a complete one once there was one. No file holds code: tensors are safetensors, the
rest is JSON.
"""

import json
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import UserError
from regard.train.progress import Progress
from regard.train.weights import flush_folder, read_tensors, write_tensors

__all__ = ["FORMAT", "CheckpointError", "Saved", "Store", "check_settings"]

FORMAT = 1
"""Version of the layout; a checkpoint of a later one is refused."""

_NAME = re.compile(r"step-(\d{8,})")


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

    def __init__(self, folder: Path, *, keep: int):
        self._folder = folder
        self._keep = keep
        self._sums: dict[str, list[int]] = {}

    def clean(self) -> None:
        """Remove what a killed process left half-written."""
        for old in self._in("checkpoints", "step-*.old"):
            # Killed between the two renames of `save`: the old one is complete and has no successor.
            if old.with_suffix("").exists():
                shutil.rmtree(old)
            else:
                old.rename(old.with_suffix(""))
        for unfinished in self._in("checkpoints", "step-*.new"):
            shutil.rmtree(unfinished)
        for unfinished in [*self._in("snapshots", ".*.new"), *self._folder.glob(".*.safetensors.new")]:
            unfinished.unlink()

    def latest(self) -> Saved | None:
        """The last complete checkpoint, None if there is none yet.

        A damaged one is passed over with a warning. Raises CheckpointError if all are damaged, or if one is
        of a newer version.
        """
        damage = None
        for folder in reversed(self._all()):
            try:
                saved, sums = self._opened(folder)
            except _DamagedError as error:
                damage = damage or error
                continue
            if damage:
                warnings.warn(f"{damage} Going on from {folder.name}.", stacklevel=2)
            self._sums = sums
            return saved
        if damage:
            raise CheckpointError(f"{damage} No older checkpoint is complete; to begin anew, use another run folder.")
        return None

    def snapshot(self, step: int) -> Path:
        """Where the weights that were validated after `step` are kept."""
        return self._folder / "snapshots" / f"step-{step:08d}.safetensors"

    def keep_snapshot(self, step: int, tensors: Mapping[str, Tensor], *, ties: Mapping[str, str]) -> None:
        """Keep weights as they were validated; the next checkpoint that does not need them lets them go."""
        path = self.snapshot(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors, ties=ties)
        self._sums[self._relative(path)] = _checksum(path)

    def save(
        self,
        progress: Progress,
        files: Mapping[str, Mapping[str, Tensor]],
        *,
        ties: Mapping[str, str],
        settings: Mapping[str, Any],
        log_bytes: int,
    ) -> Path:
        """Write a checkpoint of whole tensors, by file name; then prune those that are no longer needed."""
        place = self._folder / "checkpoints" / f"step-{progress.step:08d}"
        unfinished, old = place.with_suffix(".new"), place.with_suffix(".old")
        unfinished.mkdir(parents=True)
        needed = {*progress.recent, *([progress.best_step] if progress.best_step else [])}
        snapshots = [self._relative(self.snapshot(step)) for step in sorted(needed)]
        sums = {name: self._sums[name] for name in snapshots}
        for name, tensors in files.items():
            path = unfinished / f"{name}.safetensors"
            write_tensors(path, tensors, ties=ties if name == "model" else None)
            sums[self._relative(place / path.name)] = _checksum(path)
        state = {"format": FORMAT, "progress": progress.to_json(), "settings": dict(settings)}
        _write_json(unfinished / "state.json", state | {"log_bytes": log_bytes, "files": sums})
        if place.exists():
            place.rename(old)
        unfinished.rename(place)
        flush_folder(place.parent)
        self.prune(progress.step)
        return place

    def prune(self, step: int) -> None:
        """Remove all but the last checkpoints up to `step`, and the snapshots that none of them needs."""
        folders = self._all()
        files = {folder: _files_of(folder) for folder in folders if _step_of(folder) <= step}
        kept = [folder for folder, names in files.items() if names][-self._keep :]
        for folder in [*self._in("checkpoints", "step-*.old"), *(set(folders) - set(kept))]:
            shutil.rmtree(folder)
        needed = {name for folder in kept for name in files[folder]}
        for path in self._in("snapshots", "*.safetensors"):
            if self._relative(path) not in needed:
                path.unlink()

    def _opened(self, folder: Path) -> tuple[Saved, dict[str, list[int]]]:
        """A checkpoint whose files are all there as they were written, and the checksums it holds."""
        path = folder / "state.json"
        state = _read_json(path)
        try:
            version = int(state["format"])
            if version > FORMAT:
                raise CheckpointError(
                    f"{path} was written by a newer regard: its format is {version}, this one reads up to {FORMAT}."
                )
            progress = Progress.from_json(state["progress"])
            settings, log_bytes, sums = state["settings"], int(state["log_bytes"]), dict(state["files"])
        except (KeyError, TypeError) as error:
            raise _DamagedError(f"{path} is damaged: {error}.") from error
        for name, expected in sums.items():
            file = self._folder / name
            if not file.is_file():
                raise _DamagedError(f"{file} is missing.")
            if _checksum(file) != expected:
                raise _DamagedError(f"{file} is damaged: its length or checksum is not what was written.")
        return Saved(folder=folder, progress=progress, settings=settings, log_bytes=log_bytes), sums

    def _all(self) -> list[Path]:
        """The checkpoints, oldest first."""
        return sorted((path for path in self._in("checkpoints", "step-*") if _NAME.fullmatch(path.name)), key=_step_of)

    def _in(self, name: str, pattern: str) -> list[Path]:
        return sorted((self._folder / name).glob(pattern))

    def _relative(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def check_settings(saved: Saved, settings: Mapping[str, Any]) -> None:
    """Refuse to go on from a checkpoint whose settings decided other weights; the error names each that
    differs."""
    now = _flat(json.loads(json.dumps(settings)))
    then = _flat(saved.settings)
    names = [*then, *(name for name in now if name not in then)]
    changes = [
        f"{name} was {then.get(name, 'absent')!r}, is {now.get(name, 'absent')!r}"
        for name in names
        if name not in then or name not in now or then[name] != now[name]
    ]
    if changes:
        raise CheckpointError(
            f"{saved.folder} is of a run with other settings: {'; '.join(changes)}. "
            "Give the same settings to go on with it, or another folder to begin anew."
        )


def _flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    flat = {}
    for name, value in values.items():
        at = f"{path}.{name}" if path else name
        flat |= _flat(value, at) if isinstance(value, dict) and value else {at: value}
    return flat


def _files_of(folder: Path) -> list[str]:
    """The files that a checkpoint says it needs; none if it cannot say."""
    try:
        return list(_read_json(folder / "state.json").get("files", []))
    except _DamagedError:
        return []


def _checksum(path: Path) -> list[int]:
    """A file's length in bytes and its CRC-32."""
    total, length = 0, 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total, length = zlib.crc32(block, total), length + len(block)
    return [length, total]


def _write_json(path: Path, value: object) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise _DamagedError(f"{path} is missing.") from error
    except ValueError as error:
        raise _DamagedError(f"{path} is damaged: {error}.") from error
    if not isinstance(value, dict):
        raise _DamagedError(f"{path} is damaged: it holds no object.")
    return value
