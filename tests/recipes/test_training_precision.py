"""Precision of a run: resolved at its start, recorded, and kept until its end."""

import json
from pathlib import Path
from typing import Any

import pytest

from regard.recipes import training
from regard.recipes.run_folder import read_run
from tests.recipes.commands import command, failure
from tests.recipes.toy import toy_arguments


class Choice:
    """Result of the measurement when a run starts."""

    name: Any = "bfloat16"

    def resolve(self, setting: Any, _device: object) -> str:
        return self.name if setting == "auto" else setting


@pytest.fixture
def choice(monkeypatch: pytest.MonkeyPatch) -> Choice:
    measurement = Choice()
    monkeypatch.setattr(training, "resolve_precision", measurement.resolve)
    return measurement


def train_arguments(folder: Path, run: str, *more: str, steps: int) -> list[str]:
    plain = toy_arguments(folder, core="transformer", steps=steps)
    ending = "--train.precision auto --train.validate-every 2 --train.schedule constant --run"
    return [*plain, *ending.split(), str(folder / run), *more]


def weights(folder: Path, step: int) -> bytes:
    return (folder / "checkpoints" / f"step-{step:08d}" / "model.safetensors").read_bytes()


def test_run_continues_in_the_precision_that_it_began_in(
    tmp_path: Path, choice: Choice, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, steps in (("whole", 4), ("parts", 2)):
        command("train", *train_arguments(tmp_path, name, steps=steps))
        assert "precision bfloat16" in capsys.readouterr().err
    choice.name = "float32"
    command("train", *train_arguments(tmp_path, "parts", steps=4))
    assert "precision bfloat16" in capsys.readouterr().err
    assert weights(tmp_path / "parts", 4) == weights(tmp_path / "whole", 4)
    command("train", *train_arguments(tmp_path, "other", steps=4))
    assert weights(tmp_path / "other", 4) != weights(tmp_path / "whole", 4)
    for name, precision in (("whole", "bfloat16"), ("parts", "bfloat16"), ("other", "float32")):
        assert read_run(tmp_path / name).config.train.precision == precision
        report = json.loads((tmp_path / name / "report.json").read_text())
        assert report["config"]["train"]["precision"] == precision


def test_precision_of_a_run_may_be_given_and_another_is_refused(
    tmp_path: Path, choice: Choice, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "--train.precision"
    command("train", *train_arguments(tmp_path, "run", steps=2))
    command("train", *train_arguments(tmp_path, "run", given, "bfloat16", steps=4))
    words = train_arguments(tmp_path, "run", given, "float32", steps=6)
    expected = "--train.precision is 'bfloat16' there and 'float32' here"
    assert expected in failure(capsys, "train", *words)
    choice.name = "float32"
    words = train_arguments(tmp_path, "run", "--train.lr", "0.5", steps=6)
    message = failure(capsys, "train", *words).splitlines()[-1]
    assert "train.lr" in message
    assert "train.precision" not in message
