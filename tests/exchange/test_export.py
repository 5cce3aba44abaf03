"""Exported runs give the answers of `predict`, from text to text, where they are loaded."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ctranslate2
import pytest
import tokenizers
import torch
import transformers as hf

import regard
from regard.cli.main import main
from regard.errors import UserError
from regard.exchange.formats import export
from regard.recipes.base.run import Run
from regard.recipes.load import create_recipe
from regard.recipes.registry import get_entry
from regard.recipes.run_folder import write_run
from regard.settings.tree import apply_changes
from tests.helpers import save_weights

POST = {"norm_order": "post", "activation": "gelu"}
LEARNED = {"positions": {"name": "learned", "max_length": 140}}
LLAMA = {
    "positions": "rotary",
    "norm": "rms",
    "norm_eps": 1e-6,
    "gated": True,
    "activation": "silu",
    "bias": False,
    "key_heads": 2,
}
OPTIONS = SimpleNamespace(license="mit", compute_type="float32")


def create_run(recipe: str, folder: Path, core: dict[str, Any], **settings: Any) -> Any:
    """Write a run with random weights that were never trained, and give different outputs."""
    small = {"name": "transformer", "layers": 2, "width": 24, "heads": 4, "feedforward": 40}
    model = {"core": small | core, **settings.pop("model", {})}
    config = apply_changes(get_entry(recipe).config(), {"model": model, **settings}, called=str)
    run = Run(recipe=recipe, seed=1, config=config)
    created = create_recipe(run, lambda _: None)
    (folder / "artifacts").mkdir(parents=True)
    for name, artifact in created.fit(created.train).items():
        artifact.save(folder / "artifacts" / name)
    write_run(folder, run)
    created.open(folder / "artifacts")
    torch.manual_seed(7)
    module = created.model()
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.add_(0.25 * torch.randn_like(value))
            if ".cross." in name:
                value.mul_(3)
    save_weights(folder / "model.safetensors", module)
    return regard.load(folder, engine="torch", notify=lambda _: None)


def create_dates(folder: Path, core: dict[str, Any], **model: Any) -> Any:
    data = {"epoch_size": 300, "val_size": 20, "test_size": 1000}
    return create_run("dates", folder, core, data=data, model=model)


def create_pairs(folder: Path, core: dict[str, Any], **model: Any) -> Any:
    """Write a translator with one vocabulary."""
    path = folder.parent / "pairs.tsv"
    lines = [f"the {word} number {n}\tdie Zahl {n} {word}" for n in range(40) for word in "abc"]
    path.write_text("\n".join(lines) + "\n")
    data = {"train": str(path), "val_share": 0.2}
    settings = {"tokenizer": {"vocab_size": 90}, "decode": {"max_ratio": 0, "max_extra": 15}}
    return create_run("translate", folder, core, data=data, model=model, **settings)


def read_texts(run: Any, request: Any) -> list[str]:
    """Return test inputs: 50, or 1,000 with --slow."""
    count = 1000 if request.config.getoption("--slow") else 50
    if run.run.recipe == "dates":
        return [run.test_input(number) for number in range(count)]
    return [f"the {word} number {n}" for n in range(count // 3) for word in "abc"]


def predict(run: Any, texts: list[str]) -> list[str]:
    answers = run.predict(texts, beam=1)
    assert len(set(answers)) > 4
    return answers


RUNS = {
    "pegasus": ({}, {}),
    "pegasus-learned": (LEARNED, {"output_bias": True}),
    "marian": (POST, {"embedding_scale": "one"}),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a run of dates after half a minute of training."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    data = {"locales": ("nl", "fi", "el", "ja"), "epoch_size": 20_000, "test_size": 1000}
    train = {"steps": 300, "tensorboard": False}
    return regard.train("dates", folder, data=data, train=train, quiet=True)


SLOW = pytest.param("trained", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])


@pytest.fixture(params=[*RUNS, "joint", SLOW])
def run(request: Any, tmp_path: Path) -> Any:
    if request.param == "trained":
        return request.getfixturevalue("trained")
    if request.param == "joint":
        return create_pairs(tmp_path / "run", {})
    core, model = RUNS[request.param]
    return create_dates(tmp_path / "run", core, **model)


def test_transformers_gives_the_outputs_of_predict(run: Any, tmp_path: Path, request: Any) -> None:
    check_transformers(run, tmp_path, request)


def test_run_with_relative_positions_becomes_a_t5(tmp_path: Path, request: Any) -> None:
    core = {"positions": "relative", "norm": "rms", "bias": False, "score": "dot"}
    run = create_pairs(tmp_path / "run", core, embedding_scale="one")
    assert type(check_transformers(run, tmp_path, request)).__name__.startswith("T5")


def check_transformers(run: Any, tmp_path: Path, request: Any) -> Any:
    """Compare the outputs of `predict` with those of the exported model, and return it."""
    texts, out = read_texts(run, request), tmp_path / "exported"
    export(run, "transformers", out, OPTIONS)
    model, report = hf.AutoModelForSeq2SeqLM.from_pretrained(out, output_loading_info=True)
    assert not any(report.values())
    tokenizer = hf.AutoTokenizer.from_pretrained(out)
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    outputs = model.eval().generate(**inputs, num_beams=1)
    answers = predict(run, texts)
    assert tokenizer.batch_decode(outputs, skip_special_tokens=True) == answers
    return model


def test_ctranslate2_gives_the_outputs_of_predict(run: Any, tmp_path: Path, request: Any) -> None:
    texts, out = read_texts(run, request), tmp_path / "exported"
    export(run, "ctranslate2", out, OPTIONS)
    target = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    source = target
    if (out / "source_tokenizer.json").exists():
        source = tokenizers.Tokenizer.from_file(str(out / "source_tokenizer.json"))
    translator = ctranslate2.Translator(str(out))
    options = {"beam_size": 1, "min_decoding_length": 0}
    options["max_decoding_length"] = run.recipe.search_config().limit(1)
    results = translator.translate_batch([source.encode(text).tokens for text in texts], **options)
    decoded = []
    for result in results:
        ids = [target.token_to_id(token) for token in result.hypotheses[0]]
        decoded.append(target.decode(ids))
    assert decoded == predict(run, texts)


@pytest.mark.parametrize(
    ("core", "model", "architecture"),
    [
        ({"activation": "gelu-tanh", "score": "dot"}, {}, "GPT2LMHeadModel"),
        ({"positions": "sinusoidal"}, {}, "GPT2LMHeadModel"),
        (LLAMA, {"tie": "none"}, "LlamaForCausalLM"),
        ({**LLAMA, "attention_bias": "qkv"}, {}, "LlamaForCausalLM"),
    ],
)
def test_exported_language_model_continues_texts(
    core: dict[str, Any], model: dict[str, Any], architecture: str, tmp_path: Path
) -> None:
    run = create_run("language", tmp_path / "run", core, model=model, context=40)
    out = tmp_path / "exported"
    export(run, "transformers", out, OPTIONS)
    theirs, report = hf.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert type(theirs).__name__ == architecture
    assert not any(report.values())
    tokenizer = hf.AutoTokenizer.from_pretrained(out)
    texts = ["3 maart 2019 = ", "May", "12"]
    expected = run.predict(texts, temperature=0, length=20)
    for text, answer in zip(texts, expected, strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        (ids,) = theirs.eval().generate(**inputs, do_sample=False, max_new_tokens=20)
        assert tokenizer.decode(ids) == text + answer
    generated = tmp_path / "ctranslate2"
    if "attention_bias" not in core:
        export(run, "ctranslate2", generated, OPTIONS)
        pieces = tokenizers.Tokenizer.from_file(str(generated / "tokenizer.json"))
        generator = ctranslate2.Generator(str(generated))
        options = {"max_length": 20, "min_length": 20, "include_prompt_in_result": False}
        (result,) = generator.generate_batch([pieces.encode(texts[0]).tokens], **options)
        ids = [pieces.token_to_id(token) for token in result.sequences[0]]
        assert pieces.decode(ids) == expected[0]


def test_command_writes_a_model_card(tmp_path: Path, capsys: Any) -> None:
    create_dates(tmp_path / "run", {})
    out, argv = tmp_path / "exported", ["export", str(tmp_path / "run"), "--to", "transformers"]
    assert main([*argv, "--out", str(out), "--license", "apache-2.0"]) == 0
    card = (out / "README.md").read_text()
    assert card.startswith('---\nlibrary_name: "transformers"\ntags: ["regard"]\nlicense: "apache-')
    assert "| data | built in |" in card
    assert json.loads((out / "config.json").read_text())["model_type"] == "pegasus"


@pytest.mark.parametrize(
    ("to", "option"),
    [
        ("transformers", ("--compute-type", "int8")),
        ("onnx", ("--compute-type", "int8")),
        ("page", ("--license", "mit")),
    ],
)
def test_options_that_a_format_does_not_have_are_refused(
    to: str, option: tuple[str, str], tmp_path: Path, capsys: Any
) -> None:
    run, out = create_dates(tmp_path / "run", {}), tmp_path / "out"
    assert main(["export", str(run.folder), "--to", to, "--out", str(out), *option]) == 2
    assert f"{option[0]} must not be given with --to {to}" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("core", "model", "reason"),
    [
        ({"positions": "alibi"}, {}, "model.core.positions=alibi"),
        ({"score": "cosine"}, {}, "model.core.score=cosine"),
        ({"key_heads": 2}, {}, "model.core.key_heads=2"),
        ({"norm": "rms"}, {}, "model.core.norm=rms has no place in Pegasus"),
        ({}, {"tie": "none"}, "model.tie=none"),
        ({}, {"embedding_dim": 7}, "model.embedding_dim=7"),
    ],
)
def test_settings_without_a_place_are_refused(
    core: dict[str, Any], model: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    run = create_dates(tmp_path / "run", core, **model)
    with pytest.raises(UserError, match=reason):
        export(run, "transformers", tmp_path / "new" / "exported", OPTIONS)
    assert not (tmp_path / "new").exists()


def test_run_that_generates_no_text_is_refused(tmp_path: Path) -> None:
    run = create_run("reviews", tmp_path / "run", {})
    with pytest.raises(UserError, match=r"no place in \w+ForSequenceClassification"):
        export(run, "transformers", tmp_path / "exported", OPTIONS)
    with pytest.raises(UserError, match=r"no model for runs of reviews; choose --to onnx"):
        export(run, "ctranslate2", tmp_path / "exported", OPTIONS)


def test_model_of_a_users_recipe_is_exported_as_it_computes_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_run("language", tmp_path / "run", {}, context=20)
    fields = {"model": lambda _: None}
    monkeypatch.setattr(run.recipe, "__class__", type("Own", (type(run.recipe),), fields))
    with pytest.raises(UserError, match="Transformers cannot express the model of your recipe"):
        export(run, "transformers", tmp_path / "out", OPTIONS)

    def fail(model: Any) -> Any:
        return model.no_shape

    monkeypatch.setattr("regard.exchange.graphs.graphs_of", fail)
    with pytest.raises(UserError, match=r"torch cannot express the model of .*no_sha"):
        export(run, "torch", tmp_path / "out", OPTIONS)
    assert not (tmp_path / "out").exists()
