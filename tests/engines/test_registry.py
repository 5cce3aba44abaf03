"""Engines by name: what is refused, and how; from a run folder and on the command line."""

import importlib
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from regard.cli.main import main
from regard.data.tokenize import BOS, EOS, PAD
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.search import search
from regard.engines.compiled.engine import is_at_home
from regard.engines.config import ENGINES, EngineConfig
from regard.engines.reference import TorchEngine
from regard.engines.registry import Maker, prepare, refusal, supporting
from regard.errors import UserError
from regard.models.build import build, build_language_model
from regard.models.config import LanguageModelConfig, ModelConfig, RecurrentConfig, TransformerConfig
from regard.recipes.task import load
from regard.telling import hearing
from tests.recipes.toy import SOURCES, toy_arguments

SPECIAL = {"bos": BOS, "eos": EOS, "pad": PAD}
RECURRENT = RecurrentConfig(width=8, hidden=8, attention_hidden=8)


def model(core: Any) -> Any:
    return build(ModelConfig(core=core), source_vocab=9, target_vocab=9).eval()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines")
    assert main(["train", *toy_arguments(folder, core="transformer")]) == 0
    return folder / "run"


def test_settings_name_the_engines_there_are() -> None:
    assert get_args(get_type_hints(EngineConfig)["engine"]) == ("auto", *ENGINES)


@pytest.mark.parametrize("name", ENGINES)
def test_each_engine_is_made_by_its_name(name: str) -> None:
    assert name == "torch" or isinstance(importlib.import_module(ENGINES[name]), Maker)
    small = model(TransformerConfig(layers=1, width=8, heads=2, feedforward=8))
    assert refusal(name, small) is None
    engine = prepare(name, small)
    assert (engine.name, engine.compute_type) == (name, "float32")


def test_torch_runs_everything_and_auto_what_can() -> None:
    recurrent = model(RECURRENT)
    assert supporting(recurrent) == ["torch"]
    assert isinstance(prepare("auto", recurrent), TorchEngine)
    small = model(TransformerConfig(layers=1, width=8, heads=2, feedforward=8))
    assert supporting(small) == ["torch", "compiled", "ctranslate2"]
    assert prepare("auto", small).name == ("compiled" if is_at_home() else "torch")
    config = DecodeConfig(beam=2, n_best=2)
    found = prepare("torch", recurrent).search([[4, 5, EOS]], config=config, **SPECIAL)
    assert found == search(recurrent, [[4, 5, EOS]], config=config, **SPECIAL)


def test_unknown_engines_and_impossible_ones_are_told() -> None:
    with pytest.raises(UserError, match="unknown engine 'torhc'; the engines are auto, torch, compiled, ctranslate2"):
        prepare("torhc", model(RECURRENT))
    with pytest.raises(
        UserError, match=r"engine 'ctranslate2' does not support this model: its core .* Use engine 'torch'"
    ):
        prepare("ctranslate2", model(RECURRENT))
    with pytest.raises(UserError, match="torch computes in float32 here, not in 'int8'"):
        prepare("torch", model(RECURRENT), compute_type="int8")
    with pytest.raises(UserError, match="has one worker"):
        prepare("torch", model(RECURRENT), workers=2)
    with pytest.raises(ValueError, match="workers must be from 1 to 1,024, but is 0"):
        EngineConfig(workers=0)


def test_kinds_of_models_are_told_apart() -> None:
    speaker = build_language_model(LanguageModelConfig(core=RECURRENT), vocab=9).eval()
    how: dict[str, Any] = {"window": None, "seeds": [1], "banned": []}
    assert len(prepare("torch", speaker).generate([[4]], SampleConfig(length=3), **how)[0]) == 3
    with pytest.raises(TypeError, match="reads no source"):
        prepare("torch", speaker).search([[4]], config=DecodeConfig(), **SPECIAL)
    with pytest.raises(TypeError, match="is no language model"):
        prepare("torch", model(RECURRENT)).generate([[4]], SampleConfig(length=3), **how)


def test_a_missing_package_is_told_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r'pip install "regard\[ctranslate2\]"'):
        prepare("ctranslate2", model(TransformerConfig(layers=1, width=8, heads=2, feedforward=8)))


def test_a_run_says_the_same_on_each_engine(run: Path) -> None:
    # A wider beam weighs hypotheses with shares of the banned ids, which this model has hardly begun to unlearn.
    expected = load(run, engine="torch").predict(SOURCES[:6], beam=1)
    fast = load(run, engine="ctranslate2", workers=1)
    assert fast.engine.name == "ctranslate2"
    assert fast.predict(SOURCES[:6], beam=1) == expected
    assert fast.evaluate()["bleu"] == load(run, engine="torch").evaluate()["bleu"]
    fast.compile("torch")
    assert fast.engine.name == "torch"


def test_a_run_says_the_same_in_compiled_loops_with_any_beam(run: Path) -> None:
    torchs, compiled = (load(run, engine=engine) for engine in ("torch", "compiled"))
    assert compiled.engine.name == "compiled"
    for how in ({"beam": 1}, {"n_best": 3}, {"beam": 4, "length_penalty": 0.0}):
        found, expected = compiled.predict(SOURCES[:6], **how), torchs.predict(SOURCES[:6], **how)
        if "n_best" in how:
            found, expected = ([[one.text for one in some] for some in every] for every in (found, expected))
        assert found == expected
    assert compiled.evaluate()["bleu"] == torchs.evaluate()["bleu"]


@pytest.mark.parametrize("engine", ["compiled", "ctranslate2"])
def test_who_looks_on_sees_torch(run: Path, engine: str) -> None:
    fast = load(run, engine=engine)
    with hearing(lambda told: None):
        assert fast.engine.name == "torch"
    assert fast.engine.name == engine
    assert len(fast.look(SOURCES[:1])) == 1


def test_predict_and_evaluate_take_an_engine(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for words in ([], ["--engine", "ctranslate2"], ["--engine", "ctranslate2", "--workers", "2", "--threads", "1"]):
        assert main(["predict", str(run), SOURCES[0], *words]) == 0
        assert main(["evaluate", str(run), "--json", *words]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] == said[2]
    assert main(["predict", str(run), SOURCES[0], "--engine", "ctranslate2", "--compute-type", "int8"]) == 0
    capsys.readouterr()
    wrong = {
        "--engine torhc": "torch",
        "--engine ctranslate2 --compute-type int3": "float32",
        "--workers 0": "from 1 to 1,024",
        "--engine torch --compute-type int8": "engine torch computes in float32",
    }
    for words, told in wrong.items():
        assert main(["predict", str(run), SOURCES[0], *words.split()]) == 2
        assert told in capsys.readouterr().err


def test_recipes_that_decode_nothing_take_no_engine(tmp_path: Path) -> None:
    folder = str(tmp_path / "images")
    words = "--train.steps 1 --train.tensorboard false --model.core.layers 1 --model.core.width 8 --model.core.heads 2"
    assert main(["train", "images", "--run", folder, *words.split()]) == 0
    with pytest.raises(UserError, match="the recipe images decodes no tokens"):
        load(folder, engine="ctranslate2")
    assert load(folder, engine="torch").engine.name == "torch"


def test_language_models_go_on_alike(tmp_path: Path) -> None:
    folder = tmp_path / "language"
    text = tmp_path / "text.txt"
    text.write_text("what goes around comes around, and so it goes on.\n" * 20, encoding="utf-8")
    words = (
        f"train language --run {folder} --data.train {text} --context 12 --batch 4 --train.steps 8 --train.warmup 2 "
        "--train.tensorboard false --model.core.layers 1 --model.core.width 16 --model.core.heads 2"
    )
    assert main(words.split()) == 0
    texts = ["what", "and so it goes on and on", "a"]
    one, other = load(folder), load(folder, engine="ctranslate2")
    assert other.engine.name == "ctranslate2"
    assert other.predict(texts, length=30, temperature=0) == one.predict(texts, length=30, temperature=0)
    assert other.predict(texts, length=30) == other.predict(texts, length=30)
    assert [len(said) for said in other.predict(texts, length=30)] == [30] * 3
