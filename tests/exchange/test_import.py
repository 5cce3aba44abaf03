"""Import of folders: names of all years, shards, half precision, and what is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ctranslate2
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from regard.cli.main import main
from regard.data.batches import pad
from regard.errors import UserError
from regard.exchange.families.family import family_of, find_family
from regard.exchange.families.gpt2 import GPT2
from regard.exchange.files import read_config
from regard.exchange.formats import export
from regard.exchange.imported import import_folder
from regard.recipes.registry import get_entry
from regard.recipes.run_folder import read_run
from regard.settings.tree import apply_changes
from tests.exchange.small import (
    create_model,
    import_model,
    save_model,
    save_opus,
    write_tokenizer,
)
from tests.helpers import close

CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 17,
    "n_positions": 11,
    "n_embd": 6,
    "n_layer": 2,
    "n_head": 3,
    "n_inner": 7,
}
SHAPES = {
    "ln_1.weight": (6,),
    "ln_1.bias": (6,),
    "attn.c_attn.weight": (6, 18),
    "attn.c_attn.bias": (18,),
    "attn.c_proj.weight": (6, 6),
    "attn.c_proj.bias": (6,),
    "ln_2.weight": (6,),
    "ln_2.bias": (6,),
    "mlp.c_fc.weight": (6, 7),
    "mlp.c_fc.bias": (7,),
    "mlp.c_proj.weight": (7, 6),
    "mlp.c_proj.bias": (6,),
}


def make_tensors() -> dict[str, Tensor]:
    """Return tensors by the names of this year."""
    shapes = {f"transformer.h.{n}.{name}": SHAPES[name] for n in range(2) for name in SHAPES}
    shapes |= {"transformer.wte.weight": (17, 6), "transformer.wpe.weight": (11, 6)}
    shapes |= {"transformer.ln_f.weight": (6,), "transformer.ln_f.bias": (6,)}
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write_folder(
    folder: Path, tensors: dict[str, Tensor] | None = None, **fields: Any
) -> dict[str, Tensor]:
    """Write a folder of GPT-2 and return its tensors."""
    folder.mkdir()
    config = {name: value for name, value in {**CONFIG, **fields}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = make_tensors() if tensors is None else tensors
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    write_tokenizer(folder, size=17)
    return tensors


def run_import(folder: Path, capsys: Any) -> str:
    """Import a folder that is refused, and return the message."""
    out = folder.parent / "new" / "run"
    before = sorted(folder.parent.iterdir())
    assert main(["import", str(folder), "--run", str(out)]) == 2
    assert sorted(folder.parent.iterdir()) == before
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


def test_folder_is_a_run_and_its_export_has_the_same_tensors(tmp_path: Path, capsys: Any) -> None:
    tensors = write_folder(tmp_path / "given")
    out, back = tmp_path / "run", tmp_path / "back"
    assert main(["import", str(tmp_path / "given"), "--run", str(out)]) == 0
    assert main(["export", str(out), "--to", "transformers", "--out", str(back)]) == 0
    again = load_file(back / "model.safetensors")
    assert again.keys() == tensors.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], again[name])] == []
    config = read_config(back)
    assert {name: config[name] for name in CONFIG} == CONFIG
    run = read_run(out)
    assert run.recipe == "language"
    assert run.config.context == 11
    assert run.origin is not None
    assert run.origin.size == (tmp_path / "given" / "model.safetensors").stat().st_size
    trained = regard.load(out)
    assert len(trained.predict(["t5 t6"], length=3, temperature=0.0)) == 1
    assert len(trained.look(["t5 t6 t7"])) == 1


def test_names_of_earlier_years_masks_and_copies_are_known(tmp_path: Path) -> None:
    tensors = make_tensors()
    old = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    old["lm_head.weight"] = old["wte.weight"].clone()
    old |= {f"h.{n}.attn.bias": torch.ones(1, 1, 11, 11) for n in range(2)}
    old |= {f"h.{n}.attn.masked_bias": torch.tensor(-1e4) for n in range(2)}
    write_folder(tmp_path / "given", old)
    write_folder(tmp_path / "same", tensors)
    for name in ("given", "same"):
        assert main(["import", str(tmp_path / name), "--run", str(tmp_path / f"{name}-run")]) == 0
    found, expected = (
        load_file(tmp_path / f"{name}-run" / "model.safetensors") for name in ("given", "same")
    )
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    tensors = write_folder(tmp_path / "given")
    path, names = tmp_path / "given" / "model.safetensors", sorted(tensors)
    index = {}
    for number, part in enumerate((names[:9], names[9:])):
        file = f"model-{number}.safetensors"
        save_file({name: tensors[name] for name in part}, path.with_name(file))
        index |= dict.fromkeys(part, file)
    path.unlink()
    path.with_name("model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert main(["import", str(tmp_path / "given"), "--run", str(tmp_path / "run")]) == 0
    found = load_file(tmp_path / "run" / "model.safetensors")
    assert torch.equal(found["writer.inputs.table.weight"], tensors["transformer.wte.weight"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32_and_is_said(
    dtype: torch.dtype, tmp_path: Path, capsys: Any
) -> None:
    tensors = {name: value.to(dtype) for name, value in make_tensors().items()}
    write_folder(tmp_path / "given", tensors)
    assert main(["import", str(tmp_path / "given"), "--run", str(tmp_path / "run")]) == 0
    assert "28 of 28 tensors have half precision: now float32" in capsys.readouterr().err
    found = load_file(tmp_path / "run" / "model.safetensors")["core.positions.weight"]
    assert torch.equal(found, tensors["transformer.wpe.weight"].float())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "gpt3"}, "model_type must be one of gpt2, .*; the nearest is gpt2"),
        ({"model_type": None}, "model_type must be one of .*, got None"),
        ({"model_type": ["gpt2"]}, "model_type must be one of .*, got ..gpt2"),
        ({"architectures": {"0": "GPT2LMHeadModel"}}, "architectures must be .*, got none"),
        ({"architectures": ["GPT2Model"]}, "architectures must be one of GPT2LMHeadModel, got"),
        (
            {"activation_function": "tanh"},
            "activation_function must be one of relu, .*, got 'tanh'",
        ),
        ({"add_cross_attention": True}, "add_cross_attention must be False, got True"),
        ({"n_layer": "2"}, "n_layer must be a value like 12, got '2'"),
        ({"n_layer": 0}, "n_layer must be at least 1, got 0"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized weights .gptq."),
        ({"quantization_config": [1]}, "quantized weights ..1"),
        ({"is_causal": False}, "is_causal must be True, got False"),
        ({"n_inner": 8}, "h.0.mlp.c_fc.weight is .6, 7., expected .6, 8.;.* in all"),
        ({"n_layer": 3}, "h.2.ln_1.weight is missing; .*12 in all"),
        ({"n_layer": 1}, "h.1.attn.c_attn.bias is left over"),
    ],
)
def test_config_that_has_no_place_is_refused(
    fields: dict[str, Any], message: str, tmp_path: Path, capsys: Any
) -> None:
    write_folder(tmp_path / "given", **fields)
    assert re.search(message, run_import(tmp_path / "given", capsys))


FULL, SLIDING = "full_attention", "sliding_attention"
MODERN = {
    "architectures": ["ModernBertForTokenClassification"],
    "recipe": "tags",
    "num_hidden_layers": 4,
    "layer_types": [FULL, SLIDING] * 2,
    "rope_parameters": {FULL: {"rope_theta": 50.0}, SLIDING: {"rope_theta": 7.0}},
}


def test_layers_of_modernbert_have_names_of_all_years() -> None:
    family = family_of("modernbert")
    old: dict[str, Any] = {
        "global_attn_every_n_layers": 2,
        "global_rope_theta": 50.0,
        "local_rope_theta": 7.0,
    }
    old |= {name: MODERN[name] for name in ("architectures", "recipe", "num_hidden_layers")}
    settings = family.read(family.complete(MODERN))
    assert settings == family.read(family.complete(old))
    angles = settings["core.positions.base"], settings["core.positions.window_base"]
    assert (settings["core.pattern"], settings["core.window"], angles) == ("LSLS", 128, (50, 7))
    whole = family.read(family.complete(MODERN | {"layer_types": [FULL] * 4}))
    assert {"core.window", "core.pattern", "core.positions.window_base"}.isdisjoint(whole)
    assert whole["core.positions.base"] == 50
    local = family.read(family.complete(MODERN | {"layer_types": [SLIDING] * 4}))
    assert (local["core.pattern"], local["core.positions.base"]) == ("SSSS", 7)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_types": [FULL]}, "layer_types must be 4 times full_attention or sliding_atten"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types must be 4 times"),
        ({"rope_parameters": {SLIDING: {"rope_type": "yarn"}}}, "rope_type must be default, got"),
        ({"classifier_bias": True}, "classifier_bias must equal norm_bias=False, got True"),
        ({"mlp_bias": True}, "mlp_bias must be False as in the fields before it"),
        ({"classifier_activation": "relu"}, "classifier_activation must be 'gelu', got 'relu'"),
        ({"norm_eps": 1e-6}, "norm_eps must be 1e-05, got 1e-06"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling has no place here, got"),
        ({"sliding_window": 5}, "sliding_window has no place here, got 5"),
    ],
)
def test_modernbert_that_has_no_place_is_refused(fields: dict[str, Any], message: str) -> None:
    family = family_of("modernbert")
    with pytest.raises(UserError, match=message):
        family.read(family.complete(MODERN | fields))


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        ("t5", {"dense_act_fn": "gelu"}, "dense_act_fn must be 'relu' by feed_forward_proj"),
        ("t5", {"is_gated_act": True}, "is_gated_act must be False by feed_forward_proj"),
        ("qwen2", {"is_causal": False}, "is_causal must be True, got False"),
        ("bert", {"id2label": {"0": "a", "2": "b"}}, "id2label must have the keys 0 to 1"),
        ("bert", {"id2label": ["a", "b"]}, "id2label must have the keys 0 to 1"),
        ("vit", {"preprocessor": {"do_rescale": False}}, "pixels must be divided by 255"),
        ("vit", {"preprocessor": {"rescale_factor": 1 / 127}}, "pixels must be divided by 255"),
    ],
)
def test_fields_that_would_compute_something_else_are_refused(
    model_type: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read_fields(model_type, fields)


def read_fields(model_type: str, fields: dict[str, Any]) -> None:
    family = family_of(model_type)
    config = family.complete({"recipe": "reviews"} | fields)
    family.read(config)
    family.run_settings(config)
    family.artifacts(config)


def test_of_two_fields_that_say_the_same_the_one_of_transformers_decides() -> None:
    llama, given = family_of("llama"), {"rope_type": "default", "rope_theta": 9.0}
    older = {"rope_scaling": {"rope_type": "linear", "factor": 3.0}, "rope_parameters": given}
    angles = llama.read(llama.complete(older))
    assert angles["core.positions.scaling"] == "linear"
    assert angles["core.positions.base"] == 10_000
    with pytest.raises(UserError, match="rope_scaling must be an object, got 2"):
        llama.read(llama.complete({"rope_scaling": 2}))
    t5 = family_of("t5")
    for given in (True, False):
        config = {"scale_decoder_outputs": given, "tie_word_embeddings": not given}
        assert t5.complete(config)["tie_word_embeddings"] is given


def test_a_run_with_windows_is_a_modernbert() -> None:
    core = {"name": "transformer", "layers": 4, "window": 7, "pattern": "LS", "gated": True}
    core |= {"embedding_norm": True, "first_norm": False, "activation": "gelu"}
    core |= {"positions": {"name": "rotary", "base": 50.0}}
    model = {"core": core, "pool": "mean", "head": "gelu", "embedding_scale": "one"}
    config = apply_changes(get_entry("reviews").config(), {"model": model}, called=str)
    family, written, _ = find_family(SimpleNamespace(config=config, origin=None), {}, 23)
    assert family.name == "ModernBert"
    assert written["layer_types"] == MODERN["layer_types"]
    assert {own["rope_theta"] for own in written["rope_parameters"].values()} == {50.0}
    assert (written["local_attention"], written["classifier_pooling"]) == (7, "mean")
    core["positions"] = {"name": "learned"}
    config = apply_changes(get_entry("reviews").config(), {"model": model}, called=str)
    tables = {"core.positions.weight": torch.zeros(30, 128)}
    with pytest.raises(UserError, match=r"cannot express this run: .*positions"):
        find_family(SimpleNamespace(config=config, origin=None), tables, 23)


def _only_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _damaged_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"{}")


def _write_index(folder: Path, file: str) -> None:
    (folder / "model.safetensors").unlink()
    content = json.dumps({"weight_map": {"transformer.wte.weight": file}})
    (folder / "model.safetensors.index.json").write_text(content)


def _missing_shard(folder: Path) -> None:
    _write_index(folder, "model-1.safetensors")


def _outer_shard(folder: Path) -> None:
    save_file(make_tensors(), folder.parent / "outer.safetensors")
    _write_index(folder, "../outer.safetensors")


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _large_tokenizer(folder: Path) -> None:
    write_tokenizer(folder, size=18)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_no_config, "has no config.json"),
        (_broken_config, "config.json: damaged"),
        (_adapter, "holds an adapter .*merge it first"),
        (_only_pickles, "only pytorch_model.bin, .*from transformers import GPT2LMHeadModel"),
        (_no_weights, "has no model.safetensors"),
        (_damaged_weights, "model.safetensors: damaged"),
        (_missing_shard, "model-1.safetensors: no such file"),
        (_outer_shard, "names a file outside the folder: '../outer.safetensors'"),
        (_no_tokenizer, "tokenizer"),
        (_large_tokenizer, "17"),
    ],
)
def test_folder_that_cannot_be_used_is_refused(
    change: Callable[[Path], None], message: str, tmp_path: Path, capsys: Any
) -> None:
    write_folder(tmp_path / "given")
    change(tmp_path / "given")
    assert re.search(message, run_import(tmp_path / "given", capsys))


def test_tensors_that_cannot_be_used_are_refused(tmp_path: Path, capsys: Any) -> None:
    name = "transformer.h.0.mlp.c_fc.weight"
    for number, (value, message) in enumerate(
        (
            (torch.full((6, 7), torch.nan), "holds NaN"),
            (torch.ones((6, 7), dtype=torch.int8), "is I8, expected F32"),
        )
    ):
        write_folder(tmp_path / f"{number}", {**make_tensors(), name: value})
        assert message in run_import(tmp_path / f"{number}", capsys)
    head = torch.zeros(17, 6)
    write_folder(tmp_path / "head", {**make_tensors(), "lm_head.weight": head})
    assert "lm_head.weight must equal transformer.wte" in run_import(tmp_path / "head", capsys)
    write_folder(tmp_path / "copy", {"lm_head.weight": head})
    assert "lm_head.weight must equal transformer.wte" in run_import(tmp_path / "copy", capsys)


def test_settings_of_generation_that_are_not_read_are_said(tmp_path: Path) -> None:
    folder, path = tmp_path / "given", tmp_path / "given" / "generation_config.json"
    write_folder(folder, pad_token_id=4, num_beams=1, no_repeat_ngram_size=2)
    generation = {"repetition_penalty": 1.1, "forced_bos_token_id": 5}
    generation |= {"suppress_tokens": [4], "bad_words_ids": [[4], [6, 7]]}
    path.write_text(json.dumps(generation))
    notices = list[str]()
    import_folder(folder, tmp_path / "run", notify=notices.append)
    unread = (
        "repetition_penalty 1.1, no_repeat_ngram_size 2, forced_bos_token_id 5, "
        "bad_words_ids [[4], [6, 7]]"
    )
    assert notices == [f"{folder}: the run generates without {unread}"]


def test_output_folders_must_be_new(tmp_path: Path, capsys: Any) -> None:
    write_folder(tmp_path / "given")
    argv = ["import", str(tmp_path / "given"), "--run", str(tmp_path / "run")]
    assert main(argv) == 0
    assert main(argv) == 2
    assert "is not empty; choose another folder" in capsys.readouterr().err
    export = ["export", str(tmp_path / "run"), "--to", "transformers", "--out"]
    assert main([*export, str(tmp_path / "given")]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main([*export, str(tmp_path / "given" / "config.json")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "run"), "--to", "gguf", "--out", "x"]) == 2
    assert "--to must be transformers" in capsys.readouterr().err


def test_imported_run_is_not_trained_further_but_begins_another(
    tmp_path: Path, capsys: Any
) -> None:
    write_folder(tmp_path / "given")
    run = tmp_path / "run"
    assert main(["import", str(tmp_path / "given"), "--run", str(run)]) == 0
    before = (run / "model.safetensors").read_bytes()
    assert main(["train", "--run", str(run), "--train.steps", "1"]) == 2
    assert f"--init {run} starts a new run from it" in capsys.readouterr().err
    assert (run / "model.safetensors").read_bytes() == before
    text = tmp_path / "text.txt"
    text.write_text("t4 t5 t6 t7 t8 t9 " * 40)
    new = tmp_path / "new"
    short = ["--train.steps", "2", "--train.warmup", "1", "--train.validate-every", "1"]
    argv = ["train", "language", "--init", str(run), "--run", str(new), *short]
    assert main([*argv, "--data.train", str(text), "--context", "5"]) == 0
    assert read_run(new).origin is None
    assert not torch.equal(
        load_file(new / "model.safetensors")["core.positions.weight"],
        load_file(run / "model.safetensors")["core.positions.weight"],
    )


def test_every_field_that_is_read_has_a_default() -> None:
    family = GPT2()
    family.read(family.complete({"architectures": ["GPT2LMHeadModel"]}))


def test_run_for_other_labels_starts_from_an_imported_classifier(
    tmp_path: Path, capsys: Any
) -> None:
    folder = save_model(create_model("bert", 1), tmp_path / "given")
    run = tmp_path / "run"
    assert main(["import", str(folder), "--run", str(run)]) == 0
    lines = [f"t{n} t{n + 1}\t{('good', 'odd')[n % 2]}" for n in range(5, 45)]
    (tmp_path / "texts.tsv").write_text("\n".join(lines) + "\n")
    short = ["--train.steps", "2", "--train.warmup", "1", "--train.validate-every", "1"]
    argv = ["train", "reviews", "--init", str(run), "--run", str(tmp_path / "new"), *short]
    assert main([*argv, "--data.train", str(tmp_path / "texts.tsv")]) == 0
    assert "new labels: odd" in capsys.readouterr().err
    before, after = (
        load_file(path / "model.safetensors")["writer.output.weight"]
        for path in (run, tmp_path / "new")
    )
    assert after.shape == (2, 20)
    good = after[0] * before[1].norm() / after[0].norm()  # both are divided by a temperature
    assert (good - before[1]).abs().max() < 0.05


@pytest.mark.filterwarnings("ignore:contributions to the scores are not shown")
@pytest.mark.parametrize("case", ["gpt2", "bert", "marian"])
def test_look_shows_the_attention_of_transformers(case: str, tmp_path: Path) -> None:
    theirs = create_model(case, 1)
    run = import_model(save_model(theirs, tmp_path / "theirs"), tmp_path / "run")
    (found,) = run.look(["t5 t6 t7"])
    given = {"input_ids": torch.tensor([[5, 6, 7]])}
    if case == "marian":
        labels = found.sample.axes["decoder input"].labels
        ids = [run.recipe.tokenizer.numbers[label] for label in labels]
        given["decoder_input_ids"] = torch.tensor([ids])
    outputs = theirs(**given, output_attentions=True)
    expected = {
        "encoder self": outputs.get("encoder_attentions", outputs.get("attentions")),
        "decoder self": outputs.get("decoder_attentions", outputs.get("attentions")),
        "cross": outputs.get("cross_attentions"),
    }
    maps = [one for one in found.maps if one.measure == "weight"]
    assert len(maps) == (2 + 3 + 3 if case == "marian" else 3)
    for one in maps:
        weights = torch.stack([one.head(number) for number in range(len(one.heads))])
        close(weights, expected[one.kind][one.layer - 1][0].detach())


@pytest.mark.slow
def test_run_with_adapters_is_exported_with_their_sums(tmp_path: Path) -> None:
    theirs = create_model("gpt2", 1)
    run = import_model(save_model(theirs, tmp_path / "theirs"), tmp_path / "run")
    (tmp_path / "text.txt").write_text("t4 t5 t6 t7 t8 t9 " * 40)
    train = {"steps": 3, "warmup": 1, "lora": 2, "lr": 0.1, "tensorboard": False}
    data, settings = {"train": str(tmp_path / "text.txt")}, {"context": 5, "train": train}
    tuned = regard.train(
        "language", tmp_path / "tuned", init=run.folder, data=data, quiet=True, **settings
    )
    export(tuned, "transformers", tmp_path / "out", SimpleNamespace(license=None))
    again = hf.GPT2LMHeadModel.from_pretrained(tmp_path / "out", attn_implementation="eager")
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        before, after = (model(input_ids=ids).logits for model in (theirs, again.eval()))
        close(after, tuned.model(target=pad([[5, 6, 7, 8, 0]])))
    assert (after - before).abs().max() > 0.1


def test_page_of_a_classifier_is_refused_before_its_data_is_read(tmp_path: Path) -> None:
    folder = save_model(create_model("bert", 1), tmp_path / "theirs")
    run = import_model(folder, tmp_path / "run")
    with pytest.raises(UserError, match="no form for runs of reviews; choose --to onnx"):
        export(run, "page", tmp_path / "out", SimpleNamespace())


@pytest.mark.parametrize("num_targets", [50, 40])
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_marian_of_sentencepiece_answers_as_in_transformers_and_ctranslate2(
    num_targets: int, tmp_path: Path
) -> None:
    """With 40 pieces of targets there are two vocabularies."""
    spm = pytest.importorskip("sentencepiece")
    texts = [f"the {w} number {n} is here!" for n in range(300) for w in ("cat", "dog", "owl")]
    folder = tmp_path / "given"
    save_opus(folder, texts, num_targets)
    run = import_model(folder, tmp_path / "run")
    inputs = [texts[size * 7][-size:] for size in range(2, 22)]
    answers = run.predict(inputs, beam=1, max_length=12)
    assert len(set(answers)) > 1
    options = SimpleNamespace(license=None, compute_type="float32")
    export(run, "transformers", tmp_path / "back", options)
    tensors = load_file(folder / "model.safetensors")
    again = load_file(tmp_path / "back" / "model.safetensors")
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)
    theirs = hf.MarianMTModel.from_pretrained(tmp_path / "back").eval()
    theirs.generation_config.suppress_tokens = [num_targets]
    for path in (folder, tmp_path / "back"):
        tokenizer = hf.AutoTokenizer.from_pretrained(path)
        given = tokenizer(inputs, return_tensors="pt", padding=True)
        outputs = theirs.generate(**given, num_beams=1, max_new_tokens=12)
        texts = tokenizer.batch_decode(outputs, skip_special_tokens=True)
        # The library skips the padding of sources alone.
        assert [text.replace("<pad>", "").strip() for text in texts] == answers
    export(run, "ctranslate2", tmp_path / "converted", options)
    translator = ctranslate2.Translator(str(tmp_path / "converted"))
    pieces = spm.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    sources = [[*pieces.encode(text, out_type=str), "</s>"] for text in inputs]
    search = {"beam_size": 1, "max_decoding_length": 12, "min_decoding_length": 0}
    target = spm.SentencePieceProcessor(model_file=str(tmp_path / "converted" / "target.spm"))
    for result, answer in zip(translator.translate_batch(sources, **search), answers, strict=True):
        assert target.decode_pieces(result.hypotheses[0]).strip() == answer
