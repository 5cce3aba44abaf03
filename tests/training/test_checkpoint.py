import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from regard.errors import UserError
from regard.system.lock import RunDirectory
from regard.training.checkpoint import FORMAT, CheckpointError, CheckpointStore
from tests.training.toy import ToyModel, settings, train

CONFIG = settings(steps=8, validate_every=4, average=2)
LATER = settings(steps=12, validate_every=4, average=2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train `part` for eight steps, with checkpoints after four and eight, and `full` for
    twelve."""
    folder = tmp_path_factory.mktemp("trained")
    train(folder / "part", CONFIG)
    train(folder / "full", LATER)
    return folder


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    """Return a copy of `part`, to be damaged."""
    return Path(shutil.copytree(runs / "part", tmp_path / "run"))


def at(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def edit_state(folder: Path, **changes: object) -> None:
    path = folder / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def state(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "state.json").read_text())


def replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def same(path: Path, other: Path) -> bool:
    first, second = load_file(path), load_file(other)
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: os.truncate(folder / "model.safetensors", 90),
        lambda folder: os.truncate(folder / "state.json", 90),
        lambda folder: (folder / "state.json").write_text("[]"),
        lambda folder: (folder / "state.json").unlink(),
        lambda folder: (folder / "optimizer.safetensors").unlink(),
        lambda folder: flip_a_bit(folder / "optimizer.safetensors"),
        lambda folder: flip_a_bit(folder.parents[1] / "snapshots" / "step-00000008.safetensors"),
        lambda folder: edit_state(folder, progress={"step": 8}),
        lambda folder: edit_state(folder, progress=state(folder)["progress"] | {"step": 3}),
        lambda folder: edit_state(folder, progress=state(folder)["progress"] | {"tokens": 3}),
        lambda folder: edit_state(folder, log_bytes=3),
        lambda folder: edit_state(folder, settings={}),
        lambda folder: edit_state(folder, format=1),
        lambda folder: edit_state(folder, files={}),
        lambda folder: (folder / "state.json").write_text("[" * 100_000),
        lambda folder: replace(folder / "model.safetensors", os.mkfifo),
    ],
    ids=[
        "weights cut",
        "state cut",
        "state a list",
        "no state",
        "no optimizer",
        "optimizer",
        "snapshot",
        "progress",
        "lower step",
        "other tokens",
        "length of the log",
        "no settings",
        "older format",
        "no files",
        "nested",
        "pipe",
    ],
)
def test_damaged_checkpoint_is_skipped_with_a_warning(
    run: Path, runs: Path, damage: Callable[[Path], object]
) -> None:
    damage(at(run, 8))
    with pytest.warns(
        UserWarning,
        match=r"(state\.json|safetensors)( is|:) (damaged|missing|is a device).*from step-00000004",
    ):
        result = train(run, LATER)
    assert same(result.weights, runs / "full" / "model.safetensors")
    assert checkpoints(run) == ["step-00000008", "step-00000008.aside", "step-00000012"]


def test_run_with_only_damaged_checkpoints_is_refused_with_the_file(run: Path) -> None:
    shutil.rmtree(at(run, 4))
    os.truncate(at(run, 8) / "model.safetensors", 90)
    with pytest.raises(
        CheckpointError,
        match=r"step-00000008/model\.safetensors is damaged.*use another run folder",
    ):
        train(run, LATER)


def test_nothing_is_removed_if_every_checkpoint_is_damaged(run: Path) -> None:
    for step in (4, 8):
        edit_state(at(run, step), progress=state(at(run, step))["progress"] | {"step": 1})
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(
        CheckpointError, match="No older checkpoint is complete; nothing was removed"
    ):
        train(run, LATER)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_checkpoint_set_aside_can_be_restored_and_resumed(run: Path) -> None:
    original = (at(run, 8) / "state.json").read_bytes()
    flip_a_bit(at(run, 8) / "state.json")
    with pytest.warns(
        UserWarning, match=r"nothing is removed: step-00000008 is kept as step-00000008\.aside"
    ):
        train(run, dataclasses.replace(LATER, steps=7))
    shutil.rmtree(at(run, 7))
    at(run, 8).with_suffix(".aside").rename(at(run, 8))
    (at(run, 8) / "state.json").write_bytes(original)
    checkpoint = CheckpointStore(RunDirectory(run), keep=2).latest()
    assert checkpoint is not None
    assert checkpoint.progress.step == 8


def test_weights_of_a_checkpoint_set_aside_are_kept(run: Path) -> None:
    weights = run / "model.safetensors"
    content = weights.read_bytes()
    os.truncate(at(run, 8) / "model.safetensors", 90)
    with pytest.warns(UserWarning, match=r"model\.safetensors as model\.safetensors\.aside"):
        train(run, LATER)
    assert weights.with_name("model.safetensors.aside").read_bytes() == content
    assert weights.read_bytes() != content


def test_folder_in_the_place_of_a_snapshot_is_set_aside(run: Path, runs: Path) -> None:
    snapshot = CheckpointStore(RunDirectory(run), keep=2).snapshot_path(12)
    (snapshot / "mine").mkdir(parents=True)
    result = train(run, LATER)
    assert same(result.weights, runs / "full" / "model.safetensors")
    assert (snapshot.with_name(f"{snapshot.name}.aside") / "mine").is_dir()


def test_other_files_are_never_removed(run: Path) -> None:
    foreign = [
        run / "checkpoints" / "step-0000" / "model.safetensors",
        run / "checkpoints" / "step-00000010" / "thesis.tex",
        run / "checkpoints" / "step-00000006.old" / "thesis.tex",
        at(run, 4) / "notes.txt",
        run / "snapshots" / "step-4.safetensors",
        run / "snapshots" / "mine.tmp",
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    train(run, settings(steps=14, validate_every=4, average=2, checkpoint_every=2, keep=1))
    renamed = {"step-00000010": "step-00000010.aside", "step-00000006.old": "step-00000006"}
    for path in foreign:
        current = path.parents[1] / renamed.get(path.parent.name, path.parent.name) / path.name
        assert current.read_text() == "mine"
    assert sorted(path.name for path in at(run, 4).iterdir()) == ["notes.txt"]


def test_checkpoint_of_an_older_format_is_refused(run: Path) -> None:
    before = checkpoints(run)
    for step in (4, 8):
        content = state(at(run, step)) | {"format": 1}
        del content["checksum"]
        (at(run, step) / "state.json").write_text(json.dumps(content))
    with pytest.raises(
        CheckpointError, match=r"an older version of regard: format must be \d, got 1"
    ):
        train(run, LATER)
    assert checkpoints(run) == before


def test_full_disk_leaves_the_last_checkpoint_and_no_partial_files(
    run: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = checkpoints(run)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises((OSError, UserError), match="No space left on device"):
            train(run, LATER)
        with pytest.raises(
            UserError,
            match=r"step-00000004\.safetensors: cannot be written: No space left on device",
        ):
            train(run.parent / "other", LATER)
    assert checkpoints(run) == before
    assert not [path for path in run.rglob("*") if ".new" in path.name]
    assert same(train(run, LATER).weights, runs / "full" / "model.safetensors")


def test_checkpoint_of_a_newer_version_is_refused(run: Path) -> None:
    edit_state(at(run, 8), format=FORMAT + 1)
    with pytest.raises(
        CheckpointError,
        match=rf"state\.json was written by a newer version of regard \(format {FORMAT + 1}, .* "
        rf"update regard",
    ):
        train(run, LATER)


def test_partial_files_of_a_killed_process_are_removed(run: Path) -> None:
    unfinished = run / "checkpoints" / "step-00000010.new"
    unfinished.mkdir()
    (unfinished / "model.safetensors").write_bytes(b"half")
    # Killed while the checkpoint of step 8 was written a second time, between the two renames.
    at(run, 8).rename(at(run, 8).with_suffix(".old"))
    # Killed while the replaced one of step 4 was removed.
    shutil.copytree(at(run, 4), at(run, 4).with_suffix(".old"))
    for path in (
        run / ".model.safetensors.new",
        run / "snapshots" / ".step-00000012.safetensors.new",
    ):
        path.write_bytes(b"half")
    checkpoint = CheckpointStore(RunDirectory(run), keep=2).open()
    unfinished = sorted(
        path.name for path in run.rglob("*") if ".new" in path.name or ".old" in path.name
    )
    assert unfinished == []
    assert checkpoint is not None
    assert checkpoint.progress.step == 8


def test_run_without_checkpoints_starts_from_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    assert CheckpointStore(RunDirectory(tmp_path), keep=1).latest() is None


def test_number_of_checkpoints_is_that_of_the_config(tmp_path: Path) -> None:
    train(tmp_path, settings(steps=7, validate_every=99, checkpoint_every=2, keep=2))
    # One more follows the last step's validation.
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step-00000006",
        "step-00000007",
    ]


def test_weights_of_another_model_are_refused(run: Path) -> None:
    deeper = ToyModel()
    deeper.layers.append(torch.nn.Linear(5, 5))
    with pytest.raises(
        ValueError, match=r"step-00000008 does not fit this model: layers\.2\.weight is missing"
    ):
        train(run, LATER, model=deeper)


def test_finished_run_started_again_removes_checkpoints_that_are_not_needed(run: Path) -> None:
    train(run, dataclasses.replace(CONFIG, keep=1))
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000008"]


@pytest.mark.parametrize(
    "name", ["step-00000008", "step-00000008/state.json", "step-00000008/optimizer.safetensors"]
)
def test_symbolic_link_in_the_place_of_a_checkpoint_is_refused(run: Path, name: str) -> None:
    path, elsewhere = run / "checkpoints" / name, run.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    before = sorted(file.name for file in run.rglob("*"))
    with pytest.raises(
        UserError, match=f"{path.name} is a symbolic link to .*elsewhere, and training writes only"
    ):
        train(run, LATER)
    assert sorted(file.name for file in run.rglob("*")) == before


def test_link_of_another_name_next_to_checkpoints_is_not_touched(run: Path) -> None:
    (run / "checkpoints" / "latest").symlink_to("step-00000008")
    train(run, LATER)
    assert (run / "checkpoints" / "latest").is_symlink()


@pytest.mark.parametrize("name", ["checkpoints", "snapshots", "tb"])
def test_folder_linked_to_another_run_is_refused(run: Path, runs: Path, name: str) -> None:
    other = Path(shutil.copytree(runs / "part", run.parent / "other"))
    (other / "tb").mkdir(exist_ok=True)
    (other / "tb" / "events").touch()
    shutil.rmtree(run / name, ignore_errors=True)
    (run / name).symlink_to(other / name)
    before = sorted(other.rglob("*"))
    with pytest.raises(
        UserError, match=rf"{name} is a symbolic link to .*, which holds files that may not belong"
    ):
        train(run, LATER)
    assert sorted(other.rglob("*")) == before


def test_checkpoints_on_another_disk_belong_to_the_run_after_a_move(
    tmp_path: Path, runs: Path
) -> None:
    run, disk, moved = tmp_path / "run", tmp_path / "disk", tmp_path / "moved"
    run.mkdir()
    disk.mkdir()
    (run / "checkpoints").symlink_to(disk)
    train(run, CONFIG)
    run.rename(moved)
    train(moved, LATER)
    assert (disk / "step-00000012" / "state.json").exists()
    assert same(moved / "model.safetensors", runs / "full" / "model.safetensors")
    copied = Path(shutil.copytree(moved, tmp_path / "copied", symlinks=True))
    with pytest.raises(UserError, match=rf"belongs to the run in {moved}"):
        train(copied, settings(steps=16, validate_every=4, average=2))
