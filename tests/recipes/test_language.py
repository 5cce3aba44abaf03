"""Run of a language model: it learns a repetitive text, continues prompts, and is evaluated."""

import json
import math
from pathlib import Path

import pytest
import torch

from regard.cli.main import main
from regard.errors import UserError
from regard.look.maps import GRADIENT
from regard.look.record import record
from regard.recipes.load import load

TEXT = "the cat sat on the mat and the dog sat on the log.\n"


@pytest.fixture(scope="module", params=["transformer", "recurrent", "self-attentive"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language")
    for name, number in (("train", 60), ("val", 6), ("test", 6)):
        (folder / f"{name}.txt").write_text(TEXT * number, encoding="utf-8")
    files = " ".join(f"--data.{name} {folder / name}.txt" for name in ("train", "val", "test"))
    small = {
        "transformer": "--model.core.layers 1 --model.core.width 32 --model.core.feedforward 32",
        "recurrent": "--model.core recurrent --model.core.width 32 --model.core.hidden 64",
        "self-attentive": "--model.core self-attentive --model.core.width 32 --model.core.hidden 64 "
        "--model.core.self-attention-recency learned",
    }[request.param]
    limits = "--train.steps 150 --train.warmup 10 --train.lr 1e-2 --train.validate-every 50 --train.tensorboard false"
    command = f"train language --run {folder / 'run'} {files} {small} {limits} --context 32 --batch 8"
    assert main(command.split()) == 0
    return folder


def test_learns_and_reports(run):
    found = json.loads((run / "run" / "report.json").read_text())
    assert found["test"]["nll"] < 0.25
    assert found["test"]["bits"] == pytest.approx(found["test"]["nll"] / math.log(2))
    assert found["test"]["perplexity"] == pytest.approx(math.exp(found["test"]["nll"]))
    assert found["test"]["examples"] == 6 * len(TEXT) - 1


def test_continues_prompts(run, capsys):
    trained = load(run / "run")
    (said,) = trained.predict(["the cat sat on the mat"], length=9, temperature=0)
    assert said == " and the "
    assert main(["predict", str(run / "run"), "the cat sat", "--sample.length", "7", "--sample.temperature", "0"]) == 0
    assert capsys.readouterr().out == " on the\n"
    long = trained.predict(["the cat"], length=120, temperature=0)[0]
    assert len(long) == 120
    with pytest.raises(UserError, match="input 2 is empty"):
        trained.predict(["the", ""])


def test_other_text_is_scored(run, tmp_path, capsys):
    other = tmp_path / "other.txt"
    other.write_text("the cat sat on the log.\n" * 3, encoding="utf-8")
    assert main(["evaluate", str(run / "run"), "--data.test", str(other), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["examples"] == 71
    assert found["unknown"] == 0


def test_context_longer_than_learned_positions_is_refused(tmp_path, capsys):
    command = f"train language --run {tmp_path / 'run'} --context 99 --model.core.max-positions 98"
    assert main(command.split()) == 2
    assert "max_positions must be at least context=99, got 98" in capsys.readouterr().err


def test_look_shows_the_attention_of_each_character(run):
    trained = load(run / "run")
    if trained.config.model.core.name == "recurrent":
        with pytest.raises(UserError, match="this model does not attend"):
            trained.look(["the cat"])
        return
    first, second = trained.look(["the cat", "a log"])
    letters = (*"the", "\u2581", *"cat")
    assert first.sample.axes["fed"].labels == letters
    assert [step.token for step in first.sample.steps[:-1]] == list(letters[1:])
    assert first.sample.steps[-1].token == "\u2581"  # behind the last stands what is likeliest
    assert second.sample.title == "a log"
    (odd,) = trained.look(["the Zat"])
    assert odd.sample.axes["fed"].labels == (*"the", "\u2581", "<unk:Z>", *"at")
    assert odd.sample.steps[3].token == odd.sample.axes["said"].labels[3] == "<unk:Z>"
    probabilities = [step.probability for step in first.sample.steps]
    assert all(
        p <= step.alternatives[0].probability + 1e-6 for p, step in zip(probabilities, first.sample.steps, strict=True)
    )
    for one in first.maps:
        assert one.kind == ("chain" if trained.config.model.core.name == "self-attentive" else "decoder self")
        assert one.weights.shape[1:] == (7, 7)
        sums = [int(one.kind != "chain"), 1, 1, 1, 1, 1, 1]
        assert one.weights[0].sum(1).tolist() == pytest.approx(sums, abs=1e-5)


def test_gradients_are_those_of_the_tokens_after_the_first(run):
    trained = load(run / "run")
    if trained.config.model.core.name == "recurrent":
        return
    before = [weight.detach().clone() for weight in trained.model.parameters()]
    plain = trained.look(["the cat", "a log"])
    capture = trained.look(["the cat", "a log"], gradients=True)
    for text, seen, other in zip(["the cat", "a log"], capture, plain, strict=True):
        assert trained.likelihood(text, seen).item() == pytest.approx(
            sum(math.log(step.probability) for step in seen.sample.steps[:-1]), abs=1e-4
        )
        assert [one.name for one in seen.find(measure=GRADIENT)] == [one.name for one in other.maps]
        for one, of in zip(seen.find(measure=GRADIENT), other.maps, strict=True):
            assert (one.queries, one.keys) == (of.queries, of.keys)
            assert one.weights.shape == of.weights.shape
            assert one.weights.any()
            assert not one.weights[of.weights == 0].any()
            assert not one.weights[:, -1].any()  # nothing follows the last token whose log p is counted
    assert all(weight.grad is None for weight in trained.model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, trained.model.parameters(), strict=True))


def test_generated_tokens_are_recorded_beside_the_prompt(run):
    trained = load(run / "run")
    if trained.config.model.core.name == "recurrent":
        return
    before = trained.predict(["the cat"], length=5)
    with record(trained) as capture:
        assert trained.predict(["the cat"], length=5) == before
    (seen,) = capture
    assert seen.sample.title == f"the cat -> {before[0]}"
    assert seen.sample.axes["fed"].labels[:3] == ("t", "h", "e")
    assert len(seen.sample.steps) == 7 - 1 + 5


def test_texts_that_cannot_be_looked_at_are_named(run):
    trained = load(run / "run")
    with pytest.raises(UserError, match="input 2 must have at least two tokens, got 1"):
        trained.look(["the", "t"])
    with pytest.raises(UserError, match="input 1 is empty"):
        trained.look([" "])
    if trained.config.model.core.name == "transformer":
        with pytest.raises(UserError, match="input 1 has 33 tokens, more than the context of 32"):
            trained.look(["a" * 33])
    one = trained.test_input(2)
    assert one == (TEXT[:32] if trained.config.model.core.name != "recurrent" else TEXT.strip())[: len(one)]
    assert len(trained.predict([one], length=3)[0]) == 3
    if trained.config.model.core.name != "recurrent":
        assert trained.look([one])[0].sample.title == one.strip()
    with pytest.raises(UserError, match="the test text has 6 inputs, from 0 to 5; there is no input 6"):
        trained.test_input(6)
