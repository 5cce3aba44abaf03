"""Trained text-to-text runs used from Python, for each core."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import pytest

import regard
from regard.data.config import TokenizerConfig
from regard.data.tokenizer import TrainedTokenizer
from regard.errors import UserError
from regard.recipes.base.recipe import Ranked
from regard.recipes.base.trained import TrainedRun
from regard.recipes.load import load
from tests.recipes.capture_checks import (
    answer_log_probs,
    check_capture,
    check_gradients,
    check_test_input,
)
from tests.recipes.commands import command, printed
from tests.recipes.toy import SOURCES, toy_arguments, write_pairs

MIXED = [SOURCES[3], "bob", SOURCES[0], "ada sees", SOURCES[11], "hal hal hal hal hal hal"]


def test_a_model_created_by_the_caller_uses_torch(trained_run: TrainedRun) -> None:
    copy = TrainedRun(trained_run.recipe, trained_run._active.module, trained_run.folder)
    assert copy.predict(["bob"]) == trained_run.predict(["bob"])
    assert copy.engine.name == "torch"


def test_predict_answers_in_order_independently_of_other_inputs(
    trained_run: TrainedRun, finished_run: Path
) -> None:
    alone = [trained_run.predict([text])[0] for text in MIXED]
    assert trained_run.predict(MIXED) == alone == regard.load(str(finished_run)).predict(MIXED)
    assert trained_run.predict([]) == []


@pytest.mark.parametrize(
    ("reference", "shown"),
    [([2, 0], "2 0"), ({"a": "x", "b": 1.5}, "x, 1.5"), ([{"a": 1}], "{'a': 1}"), (3, "3")],
)
def test_references_of_any_form_are_shown_in_samples(trained_run, reference, shown) -> None:
    dataset = trained_run.recipe.load("test")
    other = dataclasses.replace(dataset, references=[reference] * len(dataset))
    samples = trained_run._samples(trained_run.recipe, other, range(2))
    assert {sample["reference"] for sample in samples} == {shown}


def test_model_in_training_mode_is_set_to_eval_mode_with_a_warning(finished_run: Path) -> None:
    texts, run = ["bob"], load(finished_run, engine="torch")
    expected = run.predict(texts)
    run.model.train()
    repr(run)
    assert run.model.training
    with pytest.warns(UserWarning, match="run.model was in training mode"):
        assert run.predict(texts) == expected
    assert not any(part.training for part in run.model.modules())
    run.model.train()
    run.compile("torch")
    assert run.predict(texts) == expected


def test_predict_gives_n_best_with_falling_scores(trained_run: TrainedRun) -> None:
    (found,) = trained_run.predict(["ada bob sees cleo"], n_best=4, beam=4, length_penalty=0.5)
    assert [type(prediction) for prediction in found] == [Ranked] * 4
    scores = [prediction.score for prediction in found]
    assert scores[0] < 0
    assert scores == sorted(scores, reverse=True)


def test_beam_of_run_is_used_unless_another_is_given(trained_run: TrainedRun) -> None:
    decode = trained_run.config.decode
    assert decode.beam == 3
    expected = [answer.value for answer in trained_run.compute_answers(MIXED)]
    assert trained_run.predict(MIXED) == expected
    scores = [trained_run.predict(MIXED, beam=beam, n_best=1, length_penalty=0) for beam in (1, 8)]
    greedy, wide = (sum(best.score for best, *_ in predictions) for predictions in scores)
    assert wide >= greedy


def test_texts_are_text_or_utf8(trained_run: TrainedRun) -> None:
    assert trained_run.predict([b"ada sees bob"]) == trained_run.predict(["ada sees bob"])
    with pytest.raises(UserError, match="input 2 is not UTF-8"):
        trained_run.predict(["bob", b"\xff"])


@pytest.mark.parametrize(
    ("inputs", "options", "error", "message"),
    [
        ("bob", {}, TypeError, "inputs must be a list, got str"),
        ({"text": "bob"}, {}, TypeError, "inputs must be a list, got dict"),
        (["bob"], {"bem": 3}, TypeError, "unknown option 'bem'; the options are: "),
        (["bob"], {"beam": 0}, UserError, "beam must be from 1 to 1,000, got 0"),
        (["bob"], {"n_best": 3, "beam": 2}, UserError, r"n_best must be at most beam \(2\)"),
        (["bob"], {"decode": {"bem": 3}}, UserError, r"decode\.bem is not a setting"),
        (["bob"], {"decode": 3}, UserError, "decode must hold settings by name, got 3"),
        (["bob"], {"on_bad": "drop"}, UserError, "on_bad must be error or skip, got 'drop'"),
    ],
)
def test_predict_raises_type_error_for_names_and_kinds_of_arguments_and_user_error_for_values(
    trained_run: TrainedRun, inputs, options: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        trained_run.predict(inputs, **options)
    assert type(raised.value) is error


def test_an_input_of_another_type_is_skipped_as_a_bad_input(finished_run: Path) -> None:
    notes: list[str] = []
    run = load(finished_run, notify=notes.append)
    bad = [None, 5, ["bob"]]
    assert run.predict(["bob", *bad], on_bad="skip") == [*run.predict(["bob"]), *[None] * len(bad)]
    for number, (note, kind) in enumerate(zip(notes, ("NoneType", "int", "list"), strict=True)):
        assert note == f"skipped: input {number + 2} must be a text, got {kind}"


def test_answers_are_those_of_the_command_line(
    finished_run: Path, capsys: pytest.CaptureFixture
) -> None:
    run = load(finished_run, notify=[].append)
    inputs = ["bob sees", "bob " * 13, "ada sees"]
    options = ["--decode.beam", "3", "--decode.n-best", "2", "--on-bad", "skip", "--json"]
    lines = printed(capsys, "predict", finished_run, *inputs, *options).splitlines()
    answers = run.answer(inputs, beam=3, n_best=2, on_bad="skip")
    assert [list(answer) for answer in answers] == [["outputs"], ["error"], ["outputs"]]
    for line, answer in zip(map(json.loads, lines), answers, strict=True):
        assert line.get("error") == answer.get("error")
        for expected, output in zip(
            line.get("outputs", []), answer.get("outputs", []), strict=True
        ):
            assert (output["text"], output["finished"]) == (expected["text"], expected["finished"])
            assert output["score"] == pytest.approx(expected["score"], rel=1e-4)
            assert output["log_prob"] == pytest.approx(expected["log_prob"], rel=1e-4)


@pytest.mark.parametrize("count", [1, 2])
def test_n_best_in_a_dictionary_is_that_of_the_keyword(trained_run: TrainedRun, count: int) -> None:
    (expected,) = trained_run.predict(["bob"], beam=3, n_best=count)
    assert len(expected) == count
    assert trained_run.predict(["bob"], decode={"beam": 3, "n_best": count}) == [expected]
    whole = dataclasses.replace(trained_run.config.decode, beam=3, n_best=count)
    assert trained_run.predict(["bob"], decode=whole) == [
        expected if count > 1 else expected[0].text
    ]


def test_empty_text_has_an_empty_output_and_a_warning(trained_run: TrainedRun) -> None:
    with pytest.warns(UserWarning, match="input [13] is empty, and so is its output") as found:
        outputs = trained_run.predict([" ", "bob", ""])
    assert Path(regard.__file__).parent not in Path(found[0].filename).parents  # the caller's
    assert outputs == ["", trained_run.predict(["bob"])[0], ""]


@pytest.mark.parametrize(
    ("text", "size"), [("bob " * 13, "13 tokens"), ("x" * 100_000, "100,000 characters")]
)
def test_too_long_text_is_refused_with_the_limit(
    trained_run: TrainedRun, text: str, size: str
) -> None:
    with pytest.raises(UserError, match=f"input 2 is too long: {size}; the limit is 12 tokens"):
        trained_run.predict(["bob", text])


def test_evaluate_scores_the_runs_own_test_data(trained_run: TrainedRun) -> None:
    scores = trained_run.evaluate()
    assert scores["examples"] == 5
    assert 0 <= scores["bleu"] <= 100
    assert "tok:none" in scores["signature"]
    assert "tok:char" in trained_run.evaluate(bleu={"tokenize": "char"})["signature"]
    assert math.isclose(scores["perplexity"], math.exp(scores["nll"]))
    assert scores["samples"][0]["reference"] == "ADA SEES GUS HAL"
    assert [sample["output"] for sample in scores["samples"]] == trained_run.predict(SOURCES[7:12])


def test_evaluate_scores_other_pairs(trained_run: TrainedRun, tmp_path: Path) -> None:
    scores = trained_run.evaluate(write_pairs(tmp_path / "other.tsv", SOURCES[:3]))
    assert scores["examples"] == 3
    assert scores["data"].endswith("other.tsv")
    long = write_pairs(tmp_path / "long.tsv", ["bob", "bob " * 12 + "bob"])
    with pytest.raises(UserError, match=r"long\.tsv, line 2: 13 source and 13 target tokens"):
        trained_run.evaluate(long)
    messages: list[str] = []
    assert trained_run.evaluate(long, on_bad="skip", notify=messages.append)["examples"] == 1
    assert "skipped 1 of the pairs" in messages[0]
    bad = tmp_path / "bad.tsv"
    bad.write_text("bob\tBOB\nada\n", encoding="utf-8")
    assert trained_run.evaluate(bad, on_bad="skip", notify=messages.append)["examples"] == 1
    assert str(long) in messages[0]
    assert str(bad) in messages[1]


def test_outputs_end_at_the_last_learned_position(tmp_path: Path) -> None:
    learned = ["--model.core.positions", "learned", "--model.core.positions.max-length", "6"]
    command("train", *toy_arguments(tmp_path, core="transformer", steps=1), *learned)
    run = load(tmp_path / "run")
    lengths = [len(output.split()) for output in run.predict(SOURCES, max_extra=100, beam=1)]
    assert max(lengths) == 6
    with pytest.raises(UserError, match="the limit is 5 tokens"):  # and EOS
        run.predict(["ada bob cleo dan eve finn"])


def test_evaluation_equals_that_of_one_pair_at_a_time(
    trained_run: TrainedRun, tmp_path: Path
) -> None:
    total, count = 0.0, 0
    for number, source in enumerate(SOURCES[7:12]):
        results = trained_run.evaluate(write_pairs(tmp_path / f"{number}.tsv", [source]))
        tokens = len(source.split()) + 1
        total, count = total + results["nll"] * tokens, count + tokens
    assert trained_run.evaluate()["nll"] == pytest.approx(total / count, rel=1e-5)


def test_look_relates_output_to_input(trained_run: TrainedRun) -> None:
    first, second = check_capture(trained_run, ["  bob sees ada ", "gus"])
    assert first.sample.axes["source"].labels == ("bob", "sees", "ada", "</s>")
    assert second.sample.axes["source"].labels == ("gus", "</s>")
    for maps, text in ((first, "bob sees ada"), (second, "gus")):
        assert maps.sample.title == f"{text} -> {trained_run.predict([text])[0]}".strip()
        assert ("output", "source") in [(found.queries, found.keys) for found in maps.maps]
        assert len(maps.sample.steps) == len(maps.sample.axes["output"])
    assert check_test_input(trained_run) == SOURCES[7]
    with (
        pytest.warns(UserWarning, match="input 1 is empty"),
        pytest.raises(UserError, match="text 1 is empty"),
    ):
        trained_run.look([" "])


def test_gradients_are_those_of_the_output_text(trained_run: TrainedRun) -> None:
    texts = ["bob sees ada", "gus"]
    capture = check_gradients(trained_run, texts)
    for log_prob, sample_maps in zip(answer_log_probs(trained_run, texts), capture, strict=True):
        expected = sum(math.log(step.probability) for step in sample_maps.sample.steps)
        # The search excludes special tokens.
        assert log_prob().item() == pytest.approx(expected, abs=0.2)


@pytest.fixture
def copied(finished_run: Path, tmp_path: Path) -> Path:
    ignore = shutil.ignore_patterns("checkpoints")
    return Path(shutil.copytree(finished_run, tmp_path / "copy", ignore=ignore))


@pytest.mark.parametrize("name", ["run.json", "artifacts/tokenizer.json", "model.safetensors"])
def test_load_names_a_truncated_or_missing_file(copied: Path, name: str) -> None:
    content = (copied / name).read_bytes()
    (copied / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=name):
        load(copied)
    (copied / name).unlink()
    with pytest.raises(UserError, match=name):
        load(copied)


def test_load_refuses_a_tokenizer_of_another_run(copied: Path) -> None:
    tokenizer = TrainedTokenizer.train(["bob"], TokenizerConfig(kind="char"))
    tokenizer.save(copied / "artifacts" / "tokenizer.json")
    with pytest.raises(UserError, match=r"model\.safetensors does not fit this model"):
        load(copied)


def test_a_dictionary_changes_fields_of_an_option(trained_run: TrainedRun) -> None:
    def scores(**options: object) -> list[float]:
        return [best.score for best, *_ in trained_run.predict(MIXED, n_best=1, **options)]

    changed = scores(decode={"length_penalty": 0, "beam": 1})
    assert changed == scores(length_penalty=0, beam=1) != scores()
    greedy = dataclasses.replace(trained_run.config.decode, beam=1)
    assert trained_run.evaluate(decode={"beam": 1}) == trained_run.evaluate(decode=greedy)


def test_bad_inputs_are_skipped_in_their_place(finished_run: Path) -> None:
    messages: list[str] = []
    run, long = load(finished_run, notify=messages.append), "ada " * 99
    texts = [long, "bob", "ada sees", long, SOURCES[0]]
    with pytest.raises(UserError, match="input 1"):
        run.predict(texts)
    good = run.predict([texts[1], texts[2], texts[4]])
    messages.clear()
    assert run.predict(texts, on_bad="skip") == [None, good[0], good[1], None, good[2]]
    assert [message.split(":")[0] for message in messages] == ["skipped"] * 2
    assert "input 1 " in messages[0]
    assert "input 4 " in messages[1]
    assert run.predict([long], on_bad="skip") == [None]
    run.predict([long, "bob", "zoe"], on_bad="skip")
    assert any("input 3: never seen" in message for message in messages)  # "zoe"
    ranked = run.predict(texts, on_bad="skip", n_best=1)
    assert [bool(answers) for answers in ranked] == [False, True, True, False, True]
