"""The `train` command around the training loop."""

from pathlib import Path
from typing import ClassVar

import pytest

from regard.cli.main import main


def test_training_keeps_the_memory_it_frees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr("regard.cli.train.keep_freed_memory", lambda: calls.append("kept"))
    monkeypatch.setattr("regard.recipes.training.train", lambda *_, **__: calls.append("trained") or _Interrupted())
    assert main(["train", "dates", "--run", str(tmp_path / "run")]) == 130
    assert calls == ["kept", "trained"]


def test_a_finished_run_names_the_command_that_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("regard.cli.train.keep_freed_memory", lambda: None)
    monkeypatch.setattr("regard.recipes.training.train", lambda *_, **__: _Finished())
    assert main(["train", "dates", "--run", str(tmp_path / "run")]) == 0
    assert f"try  regard predict {tmp_path / 'run'} INPUT" in capsys.readouterr().out


class _Interrupted:
    is_interrupted = True


class _Finished:
    is_interrupted = was_finished = False
    report: ClassVar = {"test": None}
