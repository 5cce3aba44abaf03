"""What a finished run keeps: its model, or also its checkpoints."""

from pathlib import Path

import pytest

from regard.recipes.load import load
from tests.recipes.commands import command, failure, printed, report
from tests.recipes.toy import toy_arguments


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    arguments = toy_arguments(folder, core="transformer")
    command("train", *arguments, "--train.keep-finished", "model")
    return folder / "run"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_the_model_is_kept(small):
    assert not [*small.rglob("checkpoints"), *small.rglob("snapshots")]
    parameters = (small / "model.safetensors").stat().st_size
    assert sum(map(len, contents(small).values())) < parameters + 100_000
    assert load(small).predict(["bob"])


def test_the_same_run_is_finished_and_not_trained_anew(small, capsys):
    before = contents(small)
    assert "is finished" in printed(capsys, "train --run", small)
    # An option that affects nothing that is left to do.
    assert "is finished" in printed(capsys, "train --run", small, "--train.log-every", "3")
    message = failure(capsys, "train --run", small, "--train.steps", "30")
    assert contents(small) == before
    _, program, longer = message.partition("its own schedule: regard ")
    assert program
    command(*longer.split("\n", 1)[:1])
    lines = (Path(f"{small}-longer") / "log.jsonl").read_text().splitlines()
    assert '"kind": "end", "step": 30' in lines[-1]


def test_checkpoints_of_a_run_that_kept_them_can_be_removed_later(tmp_path, capsys):
    command("train", *toy_arguments(tmp_path, core="transformer"))
    run = tmp_path / "run"
    kept, test = [path.name for path in (run / "checkpoints").iterdir()], report(run)
    weights = (run / "model.safetensors").read_bytes()
    assert len(kept) == 2
    command("evaluate", run)
    assert "has not finished" not in capsys.readouterr().err
    (run / "report.json").rename(tmp_path / "report.json")
    command("evaluate", run)
    steps = int(max(kept).removeprefix("step-"))
    message = f"has not finished: its last checkpoint is of step {steps:,}; `regard train"
    assert message in capsys.readouterr().err
    (tmp_path / "report.json").rename(run / "report.json")
    command("train --run", run, "--train.keep-finished", "model")
    assert not (run / "checkpoints").exists()
    assert not (run / "snapshots").exists()
    assert (run / "model.safetensors").read_bytes() == weights
    assert report(run) == test
