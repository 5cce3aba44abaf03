"""The `train` command around the training loop."""

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

from regard.cli.main import main
from tests.recipes.toy import toy_arguments


def test_training_keeps_the_memory_it_frees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr("regard.cli.train.keep_freed_memory", lambda: calls.append("kept"))
    monkeypatch.setattr(
        "regard.recipes.training.train_run",
        lambda *_, **__: calls.append("trained") or _Interrupted(),
    )
    assert main(["train", "dates", "--run", str(tmp_path / "run")]) == 130
    assert calls == ["kept", "trained"]


def test_a_finished_run_names_the_command_that_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("regard.cli.train.keep_freed_memory", lambda: None)
    monkeypatch.setattr("regard.recipes.training.train_run", lambda *_, **__: _Finished())
    assert main(["train", "dates", "--run", str(tmp_path / "run")]) == 0
    assert f"try  regard predict {tmp_path / 'run'} INPUT" in capsys.readouterr().out
    assert main(["train", "dates", "-q", "--run", str(tmp_path / "run")]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["train", "dates", "-v", "--run", str(tmp_path / "run")]) == 0
    assert "loading PyTorch: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no training data: --data.train must be"),
        (["--data.train", "nofile.tsv"], "nofile.tsv: no such file"),
    ],
)
def test_missing_data_is_named(words, message, tmp_path: Path, capsys) -> None:
    assert main(["train", "translate", "--run", str(tmp_path / "run"), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_run_is_continued_by_its_folder_to_the_weights_of_one_that_never_stopped(
    tmp_path: Path, capsys
) -> None:
    for name, steps in (("short", 8), ("long", 16)):
        (tmp_path / name).mkdir()
        arguments = toy_arguments(tmp_path / name, core="transformer", steps=steps)
        assert (
            main(
                [
                    "train",
                    *arguments,
                    "--seed",
                    "3",
                    "--threads",
                    "1",
                    "--train.schedule",
                    "constant",
                ]
            )
            == 0
        )
    short, long = tmp_path / "short", tmp_path / "long"
    (short / "train.tsv").rename(short / "moved.tsv")
    message = "train.tsv: no such file"
    assert main(["train", "--run", str(short / "run"), "--train.steps", "16"]) == 2
    assert re.search(message, capsys.readouterr().err)
    moved = short / "moved.tsv"
    longer = f"--train.steps 16 --train.log-every 1 --data.on-bad skip --data.train {moved}"
    longer += " --threads 1"
    assert main(["train", "--run", str(short / "run"), *longer.split()]) == 0
    err = capsys.readouterr().err
    assert "data.train has moved" in err
    own = f"regard train translate --init {short / 'run'} --run {short / 'run'}-longer"
    own += f" --data.train {moved} --data.val {short / 'val.tsv'} --data.test "
    assert "was finished, and its schedule goes on; a new run from it" in err
    assert f", with its own schedule: {own}" in err
    assert f"reading {short / 'moved.tsv'}, {short / 'val.tsv'}" in err
    weights = [(folder / "run" / "model.safetensors").read_bytes() for folder in (short, long)]
    assert weights[0] == weights[1]
    assert main(["train", "--run", str(long / "run")]) == 0
    assert f"regard train translate --init {long / 'run'} --run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--run RUN continues a run"),
        (
            ["--run", "{run}", "--train.lr", "0.5"],
            "--train.lr is .* there and 0.5 here",
        ),
        (["--run", "{run}", "--preset", "gpt"], "--init and --preset need a RECIPE"),
        (
            ["--run", "nowhere"],
            "nowhere is not a run folder: it has no run.json",
        ),
        (
            ["--run", "{run}", "--train.lrr", "1"],
            "unknown option --train.lrr",
        ),
    ],
)
def test_what_does_not_continue_a_run_is_named(
    words: list[str], message: str, run: Path, capsys
) -> None:
    assert main(["train", *(word.format(run=run) for word in words)]) == 2
    assert re.search(message.replace("?", r"\?"), capsys.readouterr().err)


@pytest.fixture
def _without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a command imports modules that load torch."""
    import_module = importlib.import_module

    def refuse(name: str) -> ModuleType:
        assert name not in (
            "torch",
            "regard.recipes.training",
            "regard.recipes.load",
            "regard.recipes.initial",
        )
        return import_module(name)

    monkeypatch.setattr(importlib, "import_module", refuse)


@pytest.mark.usefixtures("_without_torch")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train translate --data.train {data} --run {run}", "a run of translate with other"),
        ("train dates --run {run}", "{run} holds a run of recipe translate, not dates"),
        ("train dates --run new --init {run}", "is a run of translate, expected a run of dates"),
    ],
)
def test_refusals_that_need_no_torch_do_not_wait_for_it(
    line: str, message: str, run: Path, capsys
) -> None:
    names = {"run": run, "data": run.parent / "train.tsv"}
    assert main(line.format(**names).split()) == 2
    assert message.format(**names) in capsys.readouterr().err


class _Interrupted:
    is_interrupted = True


class _Finished:
    is_interrupted = was_finished = False
    report: ClassVar = {"test": None}
