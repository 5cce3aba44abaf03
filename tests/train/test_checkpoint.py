import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from regard.train.checkpoint import FORMAT, CheckpointError, Store
from tests.train.toy import ToyModel, settings, train

CONFIG = settings(steps=8, validate_every=4, average=2)
LATER = settings(steps=12, validate_every=4, average=2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: `part` of eight steps, with checkpoints after four and eight, and `whole` of twelve."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder / "part", CONFIG)
    train(folder / "whole", LATER)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of `part`, to harm."""
    return Path(shutil.copytree(trained / "part", tmp_path / "run"))


def at(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def edit_state(folder: Path, **changes: object) -> None:
    path = folder / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def same(one: Path, other: Path) -> bool:
    first, second = load_file(one), load_file(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: os.truncate(folder / "model.safetensors", 90),
        lambda folder: os.truncate(folder / "state.json", 90),
        lambda folder: (folder / "state.json").write_text("[]"),
        lambda folder: (folder / "state.json").unlink(),
        lambda folder: (folder / "optimizer.safetensors").unlink(),
        lambda folder: flip_a_bit(folder / "optimizer.safetensors"),
        lambda folder: flip_a_bit(folder.parents[1] / "snapshots" / "step-00000008.safetensors"),
        lambda folder: edit_state(folder, progress={"step": 8}),
    ],
    ids=[
        "weights cut",
        "state cut",
        "state a list",
        "no state",
        "no moments",
        "moments",
        "snapshot",
        "progress",
    ],
)
def test_damaged_checkpoint_is_passed_over_with_a_warning(
    run: Path, trained: Path, harm: Callable[[Path], object]
) -> None:
    harm(at(run, 8))
    with pytest.warns(
        UserWarning, match=r"(state\.json|safetensors) is (damaged|missing).*Going on from step-00000004"
    ):
        result = train(run, LATER)
    assert same(result.weights, trained / "whole" / "model.safetensors")
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == [
        "step-00000008",
        "step-00000012",
    ]


def test_run_with_damaged_checkpoints_only_is_refused_with_the_file(run: Path) -> None:
    shutil.rmtree(at(run, 4))
    os.truncate(at(run, 8) / "model.safetensors", 90)
    with pytest.raises(CheckpointError, match=r"step-00000008/model\.safetensors is damaged.*use another run folder"):
        train(run, LATER)


def test_checkpoint_of_a_newer_version_is_refused(run: Path) -> None:
    edit_state(at(run, 8), format=FORMAT + 1)
    with pytest.raises(
        CheckpointError, match=rf"state\.json was written by a newer regard: its format is {FORMAT + 1}"
    ):
        train(run, LATER)


def test_what_a_killed_process_left_is_cleaned_up(run: Path) -> None:
    unfinished = run / "checkpoints" / "step-00000010.new"
    unfinished.mkdir()
    (unfinished / "model.safetensors").write_bytes(b"half")
    # Killed while the checkpoint of step 8 was written a second time, between the two renames.
    at(run, 8).rename(at(run, 8).with_suffix(".old"))
    # Killed while the replaced one of step 4 was removed.
    shutil.copytree(at(run, 4), at(run, 4).with_suffix(".old"))
    for place in (run / ".model.safetensors.new", run / "snapshots" / ".step-00000012.safetensors.new"):
        place.write_bytes(b"half")
    Store(run, keep=2).clean()
    found = sorted(path.name for path in run.rglob("*") if ".new" in path.name or ".old" in path.name)
    assert found == []
    saved = Store(run, keep=2).latest()
    assert saved is not None
    assert saved.progress.step == 8


def test_run_without_checkpoints_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    assert Store(tmp_path, keep=1).latest() is None


def test_checkpoints_are_kept_as_many_as_asked(tmp_path: Path) -> None:
    train(tmp_path, settings(steps=7, validate_every=99, checkpoint_every=2, keep=2))
    # One more follows the last step's validation.
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step-00000006",
        "step-00000007",
    ]


def test_weights_of_another_model_are_refused(run: Path) -> None:
    deeper = ToyModel()
    deeper.layers.append(torch.nn.Linear(5, 5))
    with pytest.raises(ValueError, match=r"step-00000008 is of another model: layers\.2\.weight is missing"):
        train(run, LATER, model=deeper)


def test_what_is_no_longer_needed_goes_when_a_finished_run_starts_again(run: Path) -> None:
    train(run, dataclasses.replace(CONFIG, keep=1))
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000008"]
