"""Trained text-to-text runs used from Python, for each core."""

import math
import shutil
from pathlib import Path

import pytest
import torch

import regard
from regard.data.config import TokenizerConfig
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.recipes.base.text_to_text import Prediction, TrainedTexts
from regard.recipes.load import load
from tests.recipes.looked import check_capture, check_gradients, check_test_input
from tests.recipes.toy import SOURCES, write_pairs

MIXED = [SOURCES[3], "bob", SOURCES[0], "ada sees", SOURCES[11], "hal hal hal hal hal hal"]


def test_load_is_public(finished: Path) -> None:
    assert regard.load(finished).predict(["bob"]) == load(str(finished)).predict(["bob"])


def test_a_model_created_by_the_caller_uses_torch(trained: TrainedTexts) -> None:
    copy = trained.recipe.build_run(trained._active.module, trained.folder)
    assert copy.predict(["bob"]) == trained.predict(["bob"])
    assert copy.engine.name == "torch"


def test_predict_answers_in_order_independently_of_other_inputs(trained: TrainedTexts) -> None:
    alone = [trained.predict([text])[0] for text in MIXED]
    assert trained.predict(MIXED) == alone
    assert trained.predict([]) == []


def test_predict_gives_n_best_with_falling_scores(trained: TrainedTexts) -> None:
    (found,) = trained.predict(["ada bob sees cleo"], n_best=4, length_penalty=0.5)
    assert [type(one) for one in found] == [Prediction] * 4
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    assert all(score < 0 for score in scores)


def test_beam_of_run_is_used_unless_another_is_given(trained: TrainedTexts) -> None:
    decode = trained.config.decode
    assert decode.beam == 3
    expected = [best.text for best, *_ in trained.answers(MIXED, decode=decode)]
    assert trained.predict(MIXED) == expected
    scores = [trained.predict(MIXED, beam=beam, n_best=1, length_penalty=0) for beam in (1, 8)]
    greedy, wide = (sum(best.score for best, *_ in found) for found in scores)
    assert wide >= greedy


def test_predict_refuses_one_text_and_impossible_numbers(trained: TrainedTexts) -> None:
    with pytest.raises(TypeError, match="texts must be a list of texts, got one text: 'bob'"):
        trained.predict("bob")
    with pytest.raises(ValueError, match="n_best must be from 1"):
        trained.predict(["bob"], n_best=0)
    with pytest.raises(ValueError, match=r"n_best must be at most beam \(2\)"):
        trained.predict(["bob"], n_best=3, beam=2)


def test_empty_text_has_an_empty_output_and_a_warning(trained: TrainedTexts) -> None:
    with pytest.warns(UserWarning, match="input 1, 3 is empty"):
        found = trained.predict([" ", "bob", ""])
    assert found == ["", trained.predict(["bob"])[0], ""]


def test_unseen_word_is_read_as_unknown_with_a_warning(trained: TrainedTexts) -> None:
    with pytest.warns(UserWarning, match="never seen in training.*'zoe', in input 2"):
        found = trained.predict(["bob", "zoe sees bob"])
    assert isinstance(found[1], str)


@pytest.mark.parametrize(("text", "size"), [("bob " * 13, "13 tokens"), ("x" * 100_000, "100,000 characters")])
def test_too_long_text_is_refused_with_the_limit(trained: TrainedTexts, text: str, size: str) -> None:
    with pytest.raises(UserError, match=f"input 2 is too long: {size}; .*max_length = 12 tokens"):
        trained.predict(["bob", text])


def test_evaluate_scores_the_runs_own_test_data(trained: TrainedTexts) -> None:
    scores = trained.evaluate()
    assert scores["examples"] == 5
    assert 0 <= scores["bleu"] <= 100
    assert "tok:none" in scores["signature"]
    assert math.isclose(scores["perplexity"], math.exp(scores["nll"]))
    assert scores["samples"][0]["reference"] == "ADA SEES GUS HAL"
    assert [one["output"] for one in scores["samples"]] == trained.predict(SOURCES[7:12])


def test_evaluate_scores_other_pairs(trained: TrainedTexts, tmp_path: Path) -> None:
    scores = trained.evaluate(write_pairs(tmp_path / "other.tsv", SOURCES[:3]))
    assert scores["examples"] == 3
    assert scores["data"].endswith("other.tsv")
    long = write_pairs(tmp_path / "long.tsv", ["bob", "bob " * 12 + "bob"])
    with pytest.raises(UserError, match=r"long\.tsv, line 2: 13 source and 13 target tokens"):
        trained.evaluate(long)
    said: list[str] = []
    assert trained.evaluate(long, on_bad="skip", tell=said.append)["examples"] == 1
    assert "skipped 1 bad line" in said[0]


def test_evaluation_equals_that_of_one_pair_at_a_time(trained: TrainedTexts, tmp_path: Path) -> None:
    total, count = 0.0, 0
    for number, source in enumerate(SOURCES[7:12]):
        one = trained.evaluate(write_pairs(tmp_path / f"{number}.tsv", [source]))
        tokens = len(source.split()) + 1
        total, count = total + one["nll"] * tokens, count + tokens
    assert trained.evaluate()["nll"] == pytest.approx(total / count, rel=1e-5)


def test_look_relates_output_to_input(trained: TrainedTexts) -> None:
    first, second = check_capture(trained, ["  bob sees ada ", "gus"])
    assert first.sample.axes["source"].labels == ("bob", "sees", "ada", "</s>")
    assert second.sample.axes["source"].labels == ("gus", "</s>")
    for seen, text in ((first, "bob sees ada"), (second, "gus")):
        assert seen.sample.title == f"{text} -> {trained.predict([text])[0]}".strip()
        assert any((one.queries, one.keys) == ("said", "source") for one in seen.maps)
        assert len(seen.sample.steps) == len(seen.sample.axes["said"])
    assert check_test_input(trained) == SOURCES[7]
    with pytest.raises(UserError, match="input 1 is empty"):
        trained.look([" "])


def test_gradients_are_those_of_the_output_text(trained: TrainedTexts) -> None:
    first, second = check_gradients(trained, ["bob sees ada", "gus"])
    for text, seen in (("bob sees ada", first), ("gus", second)):
        said = sum(math.log(step.probability) for step in seen.sample.steps)
        assert trained.likelihood(text, seen).item() == pytest.approx(said, abs=0.2)  # search bans what is never said


def copy_run(finished: Path, folder: Path) -> Path:
    return Path(shutil.copytree(finished, folder / "copy", ignore=shutil.ignore_patterns("checkpoints")))


@pytest.mark.parametrize("name", ["run.json", "tokenizer.json", "model.safetensors"])
def test_load_names_a_missing_file(finished: Path, tmp_path: Path, name: str) -> None:
    copy = copy_run(finished, tmp_path)
    (copy / name).unlink()
    with pytest.raises(UserError, match=name):
        load(copy)


@pytest.mark.parametrize("name", ["run.json", "tokenizer.json", "model.safetensors"])
def test_load_names_a_truncated_file(finished: Path, tmp_path: Path, name: str) -> None:
    copy = copy_run(finished, tmp_path)
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=rf"{name}.* damaged"):
        load(copy)


def test_load_refuses_a_tokenizer_of_another_run(finished: Path, tmp_path: Path) -> None:
    copy = copy_run(finished, tmp_path)
    Tokenizer.train(["bob"], TokenizerConfig(kind="char")).save(copy / "tokenizer.json")
    with pytest.raises(UserError, match=r"tokenizer\.json: damaged, or edited by hand"):
        load(copy)
    (copy / "learned.json").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors does not fit this model"):
        load(copy)


def test_run_is_loaded_on_its_own_device_whatever_the_default_is(finished: Path) -> None:
    with torch.device("meta"):
        trained = load(finished)
    assert {parameter.device.type for parameter in trained._model.parameters()} == {"cpu"}
    assert trained.predict(["ada"]) == load(finished).predict(["ada"])
