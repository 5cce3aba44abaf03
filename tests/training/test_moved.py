"""Training in a directory that is moved, replaced or removed meanwhile."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.system.lock import DirectoryChangedError
from tests.training.toy import ToyBatches, ToyModel, settings, train

CONFIG = settings(steps=8, validate_every=4, average=2, keep=1)
OPERATIONS = ("mkdir", "rename", "replace", "unlink", "fsync", "copy_file_range")


def contents(run: Path) -> dict[str, bytes]:
    """Return the files of a run except those that hold times."""
    return {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in ("log.jsonl", "state.json")
    }


@pytest.fixture(scope="module")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train two runs, `run` and `other`, with checkpoints of the same names; return their
    folder."""
    folder = tmp_path_factory.mktemp("finished")
    train(folder / "run", CONFIG)
    train(folder / "other", CONFIG, seed=6, model=ToyModel(dropout=0.3, seed=4))
    return folder


def swap(folder: Path) -> None:
    (folder / "run").rename(folder / "moved")
    (folder / "other").rename(folder / "run")


def redirect(folder: Path) -> None:
    (folder / "run").unlink()
    (folder / "run").symlink_to("other")


def move(folder: Path) -> None:
    (folder / "run").rename(folder / "moved")


@pytest.mark.parametrize("change", [swap, redirect, move])
@pytest.mark.parametrize("at", [1, 5, 8])
def test_run_stops_after_saving_and_continues_where_it_is(
    tmp_path: Path, finished_runs: Path, change: Callable[[Path], None], at: int
) -> None:
    shutil.copytree(finished_runs / "other", tmp_path / "other")
    if change is redirect:
        (tmp_path / "moved").mkdir()
        (tmp_path / "run").symlink_to("moved")

    def act(number: int) -> None:
        if number == at:
            change(tmp_path)

    step = 4 if at < 5 else 8
    message = rf"run is no longer the directory this training started in.*now {tmp_path / 'moved'}; .*after step {step}\."
    with pytest.raises(DirectoryChangedError, match=message):
        train(tmp_path / "run", CONFIG, batches=ToyBatches(before_batch=act))
    other = tmp_path / ("run" if change is swap else "other")
    assert contents(other) == contents(finished_runs / "other")
    train(tmp_path / "moved", CONFIG)
    assert contents(tmp_path / "moved") == contents(finished_runs / "run")


def swap_before(folder: Path, fatal: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Train, and swap the directory for another before a file operation; return the number of
    operations."""
    count = -1

    def count_calls(real: Callable[..., object]) -> Callable[..., object]:
        def operation(*args: object, **kwargs: object) -> object:
            nonlocal count
            count += count >= 0
            if count == fatal:
                count = -1
                swap(folder)
            return real(*args, **kwargs)

        return operation

    def begin(number: int) -> None:
        nonlocal count
        count = 0 if number == 1 else count

    with monkeypatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, count_calls(getattr(os, name)))
        train(folder / "run", CONFIG, batches=ToyBatches(before_batch=begin))
    return count


def test_run_that_is_swapped_at_any_operation_damages_neither(
    tmp_path: Path, finished_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = swap_before(tmp_path / "count", 10_000, monkeypatch)
    assert count > 30
    for fatal in range(1, count + 1, 3):
        folder = tmp_path / str(fatal)
        shutil.copytree(finished_runs / "other", folder / "other")
        with pytest.raises(DirectoryChangedError, match="no longer the directory"):
            swap_before(folder, fatal, monkeypatch)
        assert contents(folder / "run") == contents(finished_runs / "other"), fatal
        train(folder / "moved", CONFIG)
        assert contents(folder / "moved") == contents(finished_runs / "run"), fatal


def test_removed_run_is_reported(tmp_path: Path) -> None:
    def act(number: int) -> None:
        if number == 5:
            shutil.rmtree(tmp_path / "run")

    with pytest.raises(
        DirectoryChangedError,
        match="was removed, or can no longer be found; nothing more was saved",
    ):
        train(tmp_path / "run", CONFIG, batches=ToyBatches(before_batch=act))
    assert list(tmp_path.iterdir()) == []
