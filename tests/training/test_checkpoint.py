import dataclasses
import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from regard.errors import UserError
from regard.training.checkpoint import CheckpointStore, remove_checkpoints
from tests.training.toy import ToyModel, settings, train

CONFIG = settings(steps=8, validate_every=4, average=2)
LATER = settings(steps=12, validate_every=4, average=2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train `part` for eight steps, with checkpoints after four and eight, `full` for twelve."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder / "part", CONFIG)
    train(folder / "full", LATER)
    return folder


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    """Return a copy of `part`."""
    return Path(shutil.copytree(runs / "part", tmp_path / "run"))


def at(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def same_weights(run: Path, other: Path) -> bool:
    return (run / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_damaged_file_of_the_last_checkpoint_is_named_and_the_one_before_can_be_resumed(
    run: Path, runs: Path, name: str
) -> None:
    os.truncate(at(run, 8) / name, 90)
    with pytest.raises(UserError, match=rf"step-00000008/{name}: damaged"):
        train(run, LATER)
    shutil.rmtree(at(run, 8))
    train(run, LATER)
    assert same_weights(run, runs / "full")


def test_weights_without_a_checkpoint_are_not_overwritten(run: Path) -> None:
    remove_checkpoints(run)
    with pytest.raises(UserError, match=r"model\.safetensors exists, but there is no check"):
        train(run, LATER)


def test_full_disk_leaves_the_last_checkpoint_and_no_partial_files(
    run: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = checkpoints(run)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="cannot be written: No space left on device"):
            train(run, LATER)
    assert checkpoints(run) == before
    train(run, LATER)
    assert same_weights(run, runs / "full")


def test_partial_files_of_a_killed_process_are_not_a_checkpoint_and_are_removed(
    run: Path, runs: Path
) -> None:
    for name in ("step-00000010.new", "step-00000011"):  # killed while writing, while removing
        (run / "checkpoints" / name).mkdir()
        (run / "checkpoints" / name / "model.safetensors").write_bytes(b"half")
    (run / "snapshots" / ".step-00000012.safetensors.new").write_bytes(b"half")
    saved = CheckpointStore(run, keep=2).open()
    assert saved is not None
    assert saved[1].progress.step == 8
    train(run, LATER)
    assert same_weights(run, runs / "full")
    assert checkpoints(run) == ["step-00000008", "step-00000012"]
    snapshots = [{p.name for p in (f / "snapshots").iterdir()} for f in (run, runs / "full")]
    assert snapshots[0] == snapshots[1]


def test_number_of_checkpoints_is_that_of_the_config(tmp_path: Path) -> None:
    train(tmp_path, settings(steps=7, validate_every=99, checkpoint_every=2, keep=2))
    # One more follows the last step's validation.
    assert checkpoints(tmp_path) == ["step-00000006", "step-00000007"]


def test_checkpoint_of_a_step_is_written_again_after_its_validation(tmp_path: Path) -> None:
    train(tmp_path, settings(steps=6, validate_every=99, checkpoint_every=3))
    state = json.loads((at(tmp_path, 6) / "state.json").read_text())
    assert state["progress"]["last_validation"] == 6
    assert not (at(tmp_path, 3) / "state.json").read_text().count('"last_validation": 3')


def test_weights_of_another_model_are_refused(run: Path) -> None:
    deeper = ToyModel()
    deeper.layers.append(torch.nn.Linear(5, 5))
    with pytest.raises(UserError, match=r"step-00000008 does not fit .*layers\.2\.weight is miss"):
        train(run, LATER, model=deeper)


def test_finished_run_started_again_removes_checkpoints_that_are_not_needed(run: Path) -> None:
    train(run, dataclasses.replace(CONFIG, keep=1))
    assert checkpoints(run) == ["step-00000008"]
