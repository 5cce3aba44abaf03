"""Engines by name: errors, use with a run folder and on the command line."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.cli.main import main
from regard.data.tokenizer import BOS, EOS, PAD
from regard.decode.config import DecodeConfig, SampleConfig
from regard.decode.search import search
from regard.engines.compiled.engine import is_optimized_cpu
from regard.engines.config import ENGINES, EngineConfig
from regard.engines.registry import prepare
from regard.engines.torch import TorchEngine
from regard.errors import UserError
from regard.look.record import record
from regard.models.build import build, build_language_model
from regard.models.config import LanguageModelConfig, ModelConfig
from regard.models.cores.config import RecurrentConfig, TransformerConfig
from regard.recipes.load import load
from regard.trace import Trace
from tests.engines.small import unsupported_reason
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


@pytest.mark.parametrize("name", ENGINES)
def test_each_engine_is_created_by_name(name: str) -> None:
    small = model(TransformerConfig(layers=1, width=8, heads=2, feedforward=8))
    engine = prepare(name, small)
    assert (engine.name, engine.compute_type) == (name, "float32")


def test_torch_supports_every_model_and_auto_selects_a_supported_engine() -> None:
    recurrent = model(RECURRENT)
    assert "its core is a Recurrent" in str(unsupported_reason(recurrent))
    assert isinstance(prepare("auto", recurrent), TorchEngine)
    small = model(TransformerConfig(layers=1, width=8, heads=2, feedforward=8))
    assert prepare("auto", small).name == ("compiled" if is_optimized_cpu() else "torch")
    config = DecodeConfig(beam=2, n_best=2)
    results = prepare("torch", recurrent).search([[4, 5, EOS]], config=config, **SPECIAL)
    assert results == search(recurrent, [[4, 5, EOS]], config=config, **SPECIAL)


def test_unknown_and_unsupported_engines_are_refused() -> None:
    recurrent = model(RECURRENT)
    for name, options, message in (
        ("torhc", {}, "engine must be one of auto, torch, compiled, got 'torhc'"),
        ("compiled", {}, r"not support this model: its core .* Use engine 'torch'"),
        ("torch", {"compute_type": "int8"}, r"\(float32\), bfloat16 or float16, got 'int8'"),
        ("torch", {"workers": 2}, "engine 'torch' has 1 worker, .*, got 2"),
    ):
        with pytest.raises(UserError, match=message):
            prepare(name, recurrent, **options)
    with pytest.raises(ValueError, match="workers must be from 1 to 1,024, got 0"):
        EngineConfig(workers=0)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_torch_computes_in_half_precision_by_a_copy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.engines.torch.has_half_products", lambda _: False)
    small = model(TransformerConfig(layers=1, width=8, heads=2, feedforward=8))
    with pytest.warns(UserWarning, match=f"cpu has no {name} instructions and emulates them"):
        engine = prepare("torch", small, compute_type=name)
    assert engine.compute_type == name
    assert next(small.parameters()).dtype == torch.float32
    config = DecodeConfig(beam=2, n_best=2)
    half = copy.deepcopy(small).to(getattr(torch, name))
    expected = search(half, [[4, 5, EOS]], config=config, **SPECIAL)
    assert engine.search([[4, 5, EOS]], config=config, **SPECIAL) == expected
    assert expected != prepare("torch", small).search([[4, 5, EOS]], config=config, **SPECIAL)


def test_search_and_generate_need_the_matching_kind_of_model() -> None:
    language_model = build_language_model(LanguageModelConfig(core=RECURRENT), vocab=9).eval()
    options: dict[str, Any] = {"window": None, "seeds": [1], "banned": []}
    tokens = prepare("torch", language_model).generate([[4]], SampleConfig(length=3), **options)
    assert len(tokens[0]) == 3
    with pytest.raises(TypeError, match="`search` needs an encoder-decoder, got a language model"):
        prepare("torch", language_model).search([[4]], config=DecodeConfig(), **SPECIAL)
    with pytest.raises(TypeError, match="`generate` needs a language model, got an encoder"):
        prepare("torch", model(RECURRENT)).generate([[4]], SampleConfig(length=3), **options)


def test_run_has_the_same_outputs_with_the_compiled_engine_and_any_beam(run: Path) -> None:
    reference, compiled = (load(run, engine=engine) for engine in ("torch", "compiled"))
    assert compiled.engine.name == "compiled"
    for options in ({"beam": 1}, {"n_best": 3}, {"beam": 4, "length_penalty": 0.0}):
        actual = compiled.predict(SOURCES[:6], **options)
        expected = reference.predict(SOURCES[:6], **options)
        if "n_best" in options:
            actual = [[best.text for best in hypotheses] for hypotheses in actual]
            expected = [[best.text for best in hypotheses] for hypotheses in expected]
        assert actual == expected
    assert compiled.evaluate()["bleu"] == reference.evaluate()["bleu"]


def test_recorded_runs_use_torch(run: Path) -> None:
    fast = load(run, engine="compiled")
    with record(fast):
        assert fast.engine.name == "torch"
    assert fast.engine.name == "compiled"
    assert len(fast.look(SOURCES[:1])) == 1
    sources, settings = [[4, EOS]], {"config": DecodeConfig(), **SPECIAL, "trace": Trace()}
    with pytest.raises(ValueError, match="engine 'compiled' records no trace"):
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
    for words in ("", "--engine compiled", "--engine compiled --workers 2 --threads 1"):
        assert main(["predict", str(run), SOURCES[0], *words.split()]) == 0
        assert main(["evaluate", str(run), "--json", *words.split()]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2]
    assert main(["predict", str(run), SOURCES[0], "--compute-type", "int8"]) == 0
    capsys.readouterr()
    errors = {
        "--engine torhc": "torch",
        "--engine compiled --compute-type int3": "float32",
        "--workers 0": "from 1 to 1,024",
        "--engine torch --compute-type int8": "(float32), bfloat16 or float16, got 'int8'",
    }
    for words, message in errors.items():
        assert main(["predict", str(run), SOURCES[0], *words.split()]) == 2
        assert message in capsys.readouterr().err


def test_recipes_without_decoding_refuse_engines(tmp_path: Path) -> None:
    folder = str(tmp_path / "images")
    words = "--train.steps 1 --train.tensorboard false --model.core.layers 1 --model.core.width 8"
    words += " --model.core.heads 2"
    assert main(["train", "images", "--run", folder, *words.split()]) == 0
    with pytest.raises(UserError, match="the recipe images does not decode tokens"):
        load(folder, engine="compiled")
    assert load(folder, engine="torch").engine.name == "torch"
