"""The `train` command around the training loop."""

from pathlib import Path

import pytest

from regard.cli.main import main


def test_training_keeps_the_memory_it_frees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr("regard.cli.train.keep_freed_memory", lambda: calls.append("kept"))
    monkeypatch.setattr("regard.recipes.training.train", lambda *_, **__: calls.append("trained") or _Interrupted())
    assert main(["train", "dates", "--run", str(tmp_path / "run")]) == 130
    assert calls == ["kept", "trained"]


class _Interrupted:
    is_interrupted = True
