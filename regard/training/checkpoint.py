"""Checkpoints of a run that may be killed at any moment.

    RUN/checkpoints/step-00001200/model.safetensors       parameters and buffers
                                  optimizer.safetensors   state of the optimizer
                                  ema.safetensors         moving average, if there is one
                                  state.json              progress and settings
    RUN/snapshots/step-00001000.safetensors               weights as validated: of the best and of
                                                          the last validations
    RUN/model.safetensors                                 weights of the best validation; at the
                                                          end, the selected ones

A checkpoint is written to a temporary folder, flushed to disk and renamed; older ones are removed
afterwards. So once there is a checkpoint, there always is a whole one. A folder without state.json
is not a checkpoint. No file holds code: tensors are safetensors, everything else is JSON.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import UserError
from regard.settings.tree import find_differences
from regard.system.files import read_json
from regard.system.writing import flush_folder, replace_atomically, write_atomically
from regard.training.progress import Progress
from regard.training.tensors import write_tensors

_STATE = "state.json"
_WEIGHTS = "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class State:
    """Content of state.json."""

    progress: Progress
    settings: dict[str, Any]
    """Settings that determine the weights; compared with those of the current run."""
    log_bytes: int
    """Length of log.jsonl in bytes."""
    device: str = ""
    """Type of the device that computed it; empty in checkpoints of older versions."""


@dataclass(frozen=True)
class CheckpointStore:
    """Checkpoints and snapshots in a run folder. Only the main process writes."""

    folder: Path
    keep: int

    def open(self) -> tuple[Path, State] | None:
        """Return folder and state of the last checkpoint, or None if there is none yet.

        Raises: UserError if it cannot be read, or if there are weights, but no checkpoint.
        """
        folders = list_checkpoints(self.folder)
        weights = self.folder / _WEIGHTS
        if not folders and weights.exists():
            raise UserError(f"{weights} exists, but there is no checkpoint to resume from")
        return (folders[-1], read_json(folders[-1] / _STATE, State)) if folders else None

    def accept(self, state: State) -> None:
        """Continue from a loaded checkpoint: remove files that are not needed."""
        self.prune()
        if state.progress.best_step:
            self.publish(state.progress.best_step)

    def snapshot_path(self, step: int) -> Path:
        """Return the path of the weights that were validated after `step`.

        The first checkpoint that does not need them removes them.
        """
        return self.folder / "snapshots" / f"step-{step:08d}.safetensors"

    def publish(self, step: int) -> None:
        """Copy the snapshot of `step` to model.safetensors."""
        with replace_atomically(self.folder / _WEIGHTS) as unfinished:
            shutil.copyfile(self.snapshot_path(step), unfinished)

    def save(
        self, state: State, files: Mapping[str, Mapping[str, Tensor]], *, ties: Mapping[str, str]
    ) -> None:
        """Write a checkpoint of whole tensors, by file name; then remove older ones.

        Raises: UserError or OSError if a file cannot be written; existing checkpoints stay as they
                are.
        """
        folder = self.folder / "checkpoints" / f"step-{state.progress.step:08d}"
        content = json.dumps(asdict(state), indent=1)
        if (folder / _STATE).exists():  # the same tensors, which have been validated since
            write_atomically(folder / _STATE, content)
            self.prune()
            return
        unfinished = folder.with_suffix(".new")
        _remove(folder)
        _remove(unfinished)
        unfinished.mkdir(parents=True)
        for name, tensors in files.items():
            path = unfinished / f"{name}.safetensors"
            write_tensors(path, tensors, ties=ties if name == "model" else None)
        write_atomically(unfinished / _STATE, content)
        unfinished.rename(folder)
        flush_folder(folder.parent)
        self.prune()

    def prune(self) -> None:
        """Remove all but the last checkpoints, and the snapshots that none of these needs."""
        kept = list_checkpoints(self.folder)[-self.keep :]
        for folder in (self.folder / "checkpoints").glob("step-*"):
            if folder not in kept:
                _remove(folder)
        needed = set()
        for folder in kept:
            progress = read_json(folder / _STATE, State).progress
            needed |= {*progress.recent_validations, progress.best_step}
        paths = {self.snapshot_path(step) for step in needed}
        snapshots = self.folder / "snapshots"
        for path in [*snapshots.glob("step-*"), *snapshots.glob(".step-*.new")]:
            if path not in paths:
                path.unlink()


def check_settings(folder: Path, state: State, settings: Mapping[str, Any]) -> None:
    """Raise UserError with the differences if a checkpoint has other settings."""
    differences = find_differences(state.settings, json.loads(json.dumps(settings)))
    if differences:
        shown = [f"{name} was {was!r}, is {now!r}" for name, (was, now) in differences.items()]
        raise UserError(f"{folder} belongs to a run with other settings: {'; '.join(shown)}")


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run folder, oldest first."""
    folders = [path.parent for path in folder.glob(f"checkpoints/step-*[0-9]/{_STATE}")]
    return sorted(folders, key=lambda path: (len(path.name), path.name))


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints and snapshots of a run folder."""
    for path in (folder / "checkpoints").glob("step-*"):
        _remove(path)
    for name in ("checkpoints", "snapshots"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Remove a checkpoint; its state.json first, so that a part of it is not a checkpoint."""
    (folder / _STATE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
