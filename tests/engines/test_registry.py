"""Engines by name: errors, use with a run folder and on the command line."""

import importlib
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch

from regard.cli.main import main
from regard.data.tokenizer import BOS, EOS, PAD
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.search import search
from regard.engines.compiled.engine import is_optimized_cpu
from regard.engines.config import ENGINES, EngineConfig
from regard.engines.registry import EngineModule, prepare, refusal_reason, supporting_engines
from regard.engines.torch import TorchEngine
from regard.errors import UserError
from regard.look.record import record
from regard.models.build import build, build_language_model
from regard.models.config import LanguageModelConfig, ModelConfig
from regard.models.cores.config import RecurrentConfig, TransformerConfig
from regard.recipes.load import load
from regard.trace import Trace
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
def test_each_engine_is_created_by_name(name: str) -> None:
    assert name == "torch" or isinstance(importlib.import_module(ENGINES[name]), EngineModule)
    small = model(TransformerConfig(layers=1, width=8, heads=2, feedforward=8))
    assert refusal_reason(name, small) is None
    engine = prepare(name, small)
    assert (engine.name, engine.compute_type) == (name, "float32")


def test_torch_supports_every_model_and_auto_selects_a_supported_engine() -> None:
    recurrent = model(RECURRENT)
    assert supporting_engines(recurrent) == ["torch"]
    assert isinstance(prepare("auto", recurrent), TorchEngine)
    small = model(TransformerConfig(layers=1, width=8, heads=2, feedforward=8))
    assert supporting_engines(small) == ["torch", "compiled", "ctranslate2"]
    assert prepare("auto", small).name == ("compiled" if is_optimized_cpu() else "torch")
    config = DecodeConfig(beam=2, n_best=2)
    results = prepare("torch", recurrent).search([[4, 5, EOS]], config=config, **SPECIAL)
    assert results == search(recurrent, [[4, 5, EOS]], config=config, **SPECIAL)


def test_unknown_and_unsupported_engines_are_refused() -> None:
    with pytest.raises(
        UserError, match="engine must be one of auto, torch, compiled, ctranslate2, got 'torhc'"
    ):
        prepare("torhc", model(RECURRENT))
    with pytest.raises(
        UserError,
        match=r"engine 'ctranslate2' does not support this model: its core .* Use engine 'torch'",
    ):
        prepare("ctranslate2", model(RECURRENT))
    with pytest.raises(
        UserError, match=r"engine 'torch' must be the dtype of the weights \(float32\), got 'int8'"
    ):
        prepare("torch", model(RECURRENT), compute_type="int8")
    with pytest.raises(UserError, match=r"workers of engine 'torch' must be 1 .*, got 2"):
        prepare("torch", model(RECURRENT), workers=2)
    with pytest.raises(ValueError, match="workers must be from 1 to 1,024, got 0"):
        EngineConfig(workers=0)


def test_search_and_generate_need_the_matching_kind_of_model() -> None:
    language_model = build_language_model(LanguageModelConfig(core=RECURRENT), vocab=9).eval()
    options: dict[str, Any] = {"window": None, "seeds": [1], "banned": []}
    assert (
        len(prepare("torch", language_model).generate([[4]], SampleConfig(length=3), **options)[0])
        == 3
    )
    with pytest.raises(TypeError, match="`search` needs an encoder-decoder, got a language model"):
        prepare("torch", language_model).search([[4]], config=DecodeConfig(), **SPECIAL)
    with pytest.raises(
        TypeError, match="`generate` needs a language model, got an encoder-decoder"
    ):
        prepare("torch", model(RECURRENT)).generate([[4]], SampleConfig(length=3), **options)


def test_missing_package_is_reported_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r'pip install "regard\[ctranslate2\]"'):
        prepare("ctranslate2", model(TransformerConfig(layers=1, width=8, heads=2, feedforward=8)))


def test_run_has_the_same_outputs_with_each_engine(run: Path) -> None:
    # Wider beams would differ: banned ids change the scores of hypotheses, and this model is barely
    # trained.
    expected = load(run, engine="torch").predict(SOURCES[:6], beam=1)
    fast = load(run, engine="ctranslate2", workers=1)
    assert fast.engine.name == "ctranslate2"
    assert fast.predict(SOURCES[:6], beam=1) == expected
    assert fast.evaluate()["bleu"] == load(run, engine="torch").evaluate()["bleu"]
    fast.compile("torch")
    assert fast.engine.name == "torch"


def test_run_has_the_same_outputs_with_the_compiled_engine_and_any_beam(run: Path) -> None:
    reference, compiled = (load(run, engine=engine) for engine in ("torch", "compiled"))
    assert compiled.engine.name == "compiled"
    for options in ({"beam": 1}, {"n_best": 3}, {"beam": 4, "length_penalty": 0.0}):
        actual, expected = (
            compiled.predict(SOURCES[:6], **options),
            reference.predict(SOURCES[:6], **options),
        )
        if "n_best" in options:
            actual, expected = (
                [[best.text for best in hypotheses] for hypotheses in results]
                for results in (actual, expected)
            )
        assert actual == expected
    assert compiled.evaluate()["bleu"] == reference.evaluate()["bleu"]


@pytest.mark.parametrize("engine", ["compiled", "ctranslate2"])
def test_recorded_runs_use_torch(run: Path, engine: str) -> None:
    fast = load(run, engine=engine)
    with record(fast):
        assert fast.engine.name == "torch"
    assert fast.engine.name == engine
    assert len(fast.look(SOURCES[:1])) == 1
    sources, settings = [[4, EOS]], {"config": DecodeConfig(), **SPECIAL, "trace": Trace()}
    with pytest.raises(ValueError, match=f"trace must be None with engine '{engine}'"):
        fast.engine.search(sources, **settings)


def test_a_look_inside_a_recording_belongs_to_both(run: Path) -> None:
    trained = load(run)
    with record(trained) as capture:
        trained.predict(SOURCES[:1])
        inner = trained.look(SOURCES[1:3])
        assert trained.trace is capture.trace
    assert trained.trace is None
    assert [maps.sample.title.partition(" -> ")[0] for maps in capture] == SOURCES[:3]
    for outer_maps, inner_maps in zip(capture[1:], inner, strict=True):
        assert outer_maps.sample.title == inner_maps.sample.title
        for one, other in zip(outer_maps.maps, inner_maps.find(), strict=True):
            assert torch.equal(one.weights, other.weights)


def test_predict_and_evaluate_take_an_engine(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for words in (
        [],
        ["--engine", "ctranslate2"],
        ["--engine", "ctranslate2", "--workers", "2", "--threads", "1"],
    ):
        assert main(["predict", str(run), SOURCES[0], *words]) == 0
        assert main(["evaluate", str(run), "--json", *words]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2]
    assert (
        main(["predict", str(run), SOURCES[0], "--engine", "ctranslate2", "--compute-type", "int8"])
        == 0
    )
    capsys.readouterr()
    errors = {
        "--engine torhc": "torch",
        "--engine ctranslate2 --compute-type int3": "float32",
        "--workers 0": "from 1 to 1,024",
        "--engine torch --compute-type int8": "must be the dtype of the weights (float32), got "
        "'int8'",
    }
    for words, message in errors.items():
        assert main(["predict", str(run), SOURCES[0], *words.split()]) == 2
        assert message in capsys.readouterr().err


def test_recipes_without_decoding_refuse_engines(tmp_path: Path) -> None:
    folder = str(tmp_path / "images")
    words = "--train.steps 1 --train.tensorboard false --model.core.layers 1 --model.core.width 8 --model.core.heads 2"
    assert main(["train", "images", "--run", folder, *words.split()]) == 0
    with pytest.raises(UserError, match="the recipe images does not decode tokens"):
        load(folder, engine="ctranslate2")
    assert load(folder, engine="torch").engine.name == "torch"


def test_language_models_have_the_same_outputs_with_each_engine(tmp_path: Path) -> None:
    folder = tmp_path / "language"
    text = tmp_path / "text.txt"
    text.write_text("what goes around comes around, and so it goes on.\n" * 20, encoding="utf-8")
    words = (
        f"train language --run {folder} --data.train {text} --context 12 --batch 4 --train.steps 8 "
        f"--train.warmup 2 "
        "--train.tensorboard false --model.core.layers 1 --model.core.width 16 --model.core.heads 2"
    )
    assert main(words.split()) == 0
    texts = ["what", "and so it goes on and on", "a"]
    reference, other = load(folder), load(folder, engine="ctranslate2")
    assert other.engine.name == "ctranslate2"
    assert other.predict(texts, length=30, temperature=0) == reference.predict(
        texts, length=30, temperature=0
    )
    assert other.predict(texts, length=30) == other.predict(texts, length=30)
    assert [len(text) for text in other.predict(texts, length=30)] == [30] * 3
