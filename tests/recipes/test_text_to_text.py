"""Text-to-text runs at toy size: trained, interrupted, resumed, finished, extended."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import UserError
from regard.recipes.load import load
from regard.recipes.metrics.text import bleu, exact_match
from regard.recipes.translate import recipe as translate
from tests.recipes.commands import command, failure, printed, printed_json
from tests.recipes.toy import SMALL, toy_arguments

DATES = (
    "train dates --data.locales en nl --data.epoch-size 60 --data.val-size 11 --data.test-size 13 "
    "--source-tokenizer.vocab-size 120 --train.steps 6 --train.validate-every 4 "
    "--train.batch-tokens 300 --train.warmup 2 --train.tensorboard false --train.precision float32"
)


def training_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "report.json").read_text(encoding="utf-8"))["training"]


def test_finished_run_holds_its_report_and_log(finished_run: Path) -> None:
    content = json.loads((finished_run / "report.json").read_text(encoding="utf-8"))
    assert content["training"]["steps"] == 20
    assert content["training"]["stop_reason"] == "steps"
    assert content["test"]["examples"] == 5
    assert {"bleu", "nll", "perplexity"} <= content["validation"].keys()
    parameters = load(finished_run).model.parameters()
    assert content["parameters"] == sum(value.numel() for value in parameters)
    lines = (finished_run / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines].count("validation") == 3


def test_interrupted_and_resumed_ends_with_the_same_parameters(
    finished_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = toy_arguments(tmp_path, core=load(finished_run).config.model.core.name)
    calls = []

    def score_then_stop(outputs: list[str], *arguments: Any) -> dict[str, Any]:
        calls.append(len(outputs))
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return bleu(outputs, *arguments)

    monkeypatch.setattr(translate, "bleu", score_then_stop)
    command("train", *arguments, code=130)
    assert not (tmp_path / "run" / "report.json").exists()
    command("train", *arguments)
    assert "continuing the run" in capsys.readouterr().err
    weights = [folder / "model.safetensors" for folder in (tmp_path / "run", finished_run)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_finished_run_is_reported_and_continues_with_more_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, run = toy_arguments(tmp_path, core="transformer", steps=4), tmp_path / "run"
    command("train", *arguments)
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    output = printed(capsys, "train", *arguments)
    assert "is finished: it stopped by" in output
    assert "--train.steps" in output
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files
    command("train", *arguments, "--train.steps", "6")
    assert training_of(run)["steps"] == 6


@pytest.mark.parametrize("attention", ["none", "general"])
def test_dates_run_from_training_to_report(
    tmp_path: Path, attention: str, capsys: pytest.CaptureFixture[str]
) -> None:
    core = f"{SMALL['recurrent']} --model.core.attention {attention}"
    assert "exact match, %" in printed(capsys, f"{DATES} {core} --run {tmp_path / 'run'}")
    run = load(tmp_path / "run")
    assert run.evaluate()["examples"] == 13
    exact = exact_match(["a", "b", "c"], [["a"], ["x", "y"], ["x", "c"]])
    assert exact == pytest.approx(200 / 3)
    if attention == "none":
        with pytest.raises(UserError, match="the model has no attention layers"):
            run.look(["3 maart 2019"])


def test_run_without_test_data_has_no_test_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = toy_arguments(tmp_path, core="transformer", steps=2)
    at = arguments.index("--data.test")
    del arguments[at : at + 2]
    run, out, test = tmp_path / "run", tmp_path / "answers.jsonl", tmp_path / "test.tsv"
    assert "No test data was given" in printed(capsys, "train", *arguments)
    expected = "has no test data: give it with --data.test"
    assert expected in failure(capsys, "evaluate", run)
    assert expected in failure(capsys, "look", run, "--test", "0")
    command("evaluate", run, "--data.test", test, "--predictions", out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    pairs = [f"{line['source']}\t{line['reference']}" for line in lines]
    assert pairs == test.read_text().splitlines()


BAD = {
    "--data.val missing.tsv": "missing.tsv",
    "--data.test missing.tsv": "missing.tsv",
    "--data.max-length 3": "train.tsv, line 1: 4 source and 4 target tokens, more than --data.max-",
    "--train.device warp": "device must be auto, cpu, cuda, cuda:1, mps or xpu, got 'warp'",
    "--model.tie target --tokenizer.joint false --model.core.width 0": "width must be from 1",
    "--tokenizer.joint false": "model.tie must be target or none if tokenizer.joint is false",
}


@pytest.mark.parametrize("options", BAD)
def test_unusable_data_is_reported_before_training(
    tmp_path: Path, options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = toy_arguments(tmp_path, core="transformer")
    error = failure(capsys, "train", *words, *options.split()).splitlines()[-1]
    assert BAD[options] in error
    assert error.startswith("regard: ")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_several_references_are_scored_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command("train", *toy_arguments(tmp_path, core="transformer", steps=4))
    run, test, more = tmp_path / "run", tmp_path / "test.tsv", tmp_path / "more.txt"
    outputs = load(run).predict(load(run).recipe.load("test").data.sources)
    more.write_text("\n".join(text or "nothing" for text in outputs) + "\n")
    one = printed_json(capsys, "evaluate", run, "--data.test", test)
    two = printed_json(capsys, "evaluate", run, "--data.test", test, "--data.references", more)
    assert two["chrf"] > one["chrf"]
    assert two["ter"] < one["ter"]
    assert "nrefs:2" in two["signature"]
    assert two["nll"] == one["nll"]
    with more.open("a") as file:
        file.write("one more\n")
    assert "6 lines for 5 pairs" in failure(capsys, "evaluate", run, "--data.references", more)


def test_contributions_of_a_decoder_sum_to_the_logits_of_its_output(
    finished_run: Path, tmp_path: Path
) -> None:
    run = load(finished_run)
    capture = run.look(["bob hal", "ada"])
    if run.config.model.core.name != "transformer":
        assert not capture[0].find(measure="contribution")
        return
    for maps in capture:
        (found,) = maps.find(measure="contribution")
        assert maps.keys(found).labels == tuple(step.token for step in maps.sample.steps)
        numbers = found.head(0)
        torch.testing.assert_close(numbers[1:].sum(0), numbers[0])
        parts = ("all parts", "embedding", "layer 1: self-attention")
        assert maps.queries(found).labels[:3] == parts
        # Logits minus their mean differ from log-probabilities by one number per step.
        for number, step in zip(numbers[0], maps.sample.steps, strict=True):
            assert number > 0 or step.probability < 0.9
    capture.plot(tmp_path / "why.svg", view="contributions")
    assert "layer 1: cross-attention" in (tmp_path / "why.svg").read_text()


def test_test_data_that_moved_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command("train", *toy_arguments(tmp_path, core="transformer", steps=2))
    moved = (tmp_path / "test.tsv").rename(tmp_path / "moved.tsv")
    assert "test.tsv: no such file" in failure(capsys, "evaluate", tmp_path / "run")
    command("evaluate", tmp_path / "run", "--data.test", moved)
