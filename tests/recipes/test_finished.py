"""What a finished run keeps: its model, or also its checkpoints."""

import json
from pathlib import Path

import pytest

from regard.cli.main import main
from regard.recipes.load import load
from tests.recipes.toy import toy_arguments


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    arguments = toy_arguments(folder, core="transformer")
    assert main(["train", *arguments, "--train.keep-finished", "model"]) == 0
    return folder / "run"


def test_only_the_model_is_kept(small: Path) -> None:
    assert not [*small.rglob("checkpoints"), *small.rglob("snapshots")]
    parameters = (small / "model.safetensors").stat().st_size
    assert sum(path.stat().st_size for path in small.rglob("*")) < parameters + 100_000
    assert load(small).predict(["bob"])


def test_same_command_finds_it_finished(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in small.rglob("*") if path.is_file()}
    assert main(["train", "--run", str(small)]) == 0
    assert "is finished" in capsys.readouterr().out
    assert (
        main(["train", "--run", str(small), "--train.log-every", "3"]) == 0
    )  # affects nothing that is left to do
    assert "is finished" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in small.rglob("*") if path.is_file()} == before


def test_it_is_not_trained_anew(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in small.rglob("*") if path.is_file()}
    assert main(["train", "--run", str(small), "--train.steps", "30"]) == 2
    assert f"--init {small}" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in small.rglob("*") if path.is_file()} == before


def test_checkpoints_of_a_run_that_kept_them_can_be_removed_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *toy_arguments(tmp_path, core="transformer")]) == 0
    run = tmp_path / "run"
    kept, report = (
        [path.name for path in (run / "checkpoints").iterdir()],
        (run / "report.json").read_text(),
    )
    weights = (run / "model.safetensors").read_bytes()
    assert len(kept) == 2
    assert main(["evaluate", str(run)]) == 0
    assert "has not finished" not in capsys.readouterr().err
    (run / "report.json").rename(tmp_path / "report.json")
    assert main(["evaluate", str(run)]) == 0
    steps = int(max(kept).removeprefix("step-"))
    assert (
        f"has not finished: its last checkpoint is of step {steps:,}; `regard train"
        in capsys.readouterr().err
    )
    (tmp_path / "report.json").rename(run / "report.json")
    assert main(["train", "--run", str(run), "--train.keep-finished", "model"]) == 0
    assert not (run / "checkpoints").exists()
    assert not (run / "snapshots").exists()
    assert (run / "model.safetensors").read_bytes() == weights
    tests = [json.loads(text)["test"] for text in (report, (run / "report.json").read_text())]
    assert tests[0] == tests[1]
