"""Imported models compute what Transformers does, and exports have the same tensors."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

import regard
from regard.attention.masks import Padded
from regard.cli.main import main
from regard.data.batches import pad
from regard.errors import UserError
from regard.exchange.families.timm import Timm
from regard.exchange.formats import export
from regard.exchange.imported import import_folder
from regard.models.model import Model
from tests.exchange.small import (
    BASES,
    CASES,
    CLASSIFIERS,
    IMAGE_BASES,
    IMAGES,
    VOCAB,
    create,
    create_model,
    create_t5,
    import_model,
    save_model,
)

LENGTHS = (13, 4, 9)


def draw_texts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, VOCAB, (size,), generator=generator).tolist() for size in LENGTHS]


def compute_theirs(model: Any, texts: list[list[int]]) -> list[Tensor]:
    """Return the logits of each text, padded. An encoder reads the texts reversed."""
    padded = pad(texts)
    mask = (torch.arange(max(LENGTHS)) < padded.lengths[:, None]).long()
    inputs = {"input_ids": padded.items, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        backwards = pad([text[::-1] for text in texts])
        inputs = {**inputs, "input_ids": backwards.items, "decoder_input_ids": padded.items}
    with torch.no_grad():
        logits = model(**inputs).logits
    return [row[: len(text)] for row, text in zip(logits, texts, strict=True)]


def compute_ours(model: Any, texts: list[list[int]], *, has_source: bool) -> list[Tensor]:
    source = pad([text[::-1] for text in texts]) if has_source else None
    with torch.no_grad():
        logits = model(source, pad([[*text, 0] for text in texts]))
    return [row[: len(text)] for row, text in zip(logits, texts, strict=True)]


def compute_steps(model: Any, texts: list[list[int]], *, has_source: bool) -> list[Tensor]:
    source = pad([text[::-1] for text in texts]) if has_source else None
    steps = []
    with torch.no_grad():
        state = model.start(source, rows=len(texts))
        for tokens in pad(texts).items.T:
            logits, state = model.step(tokens, state)
            steps.append(logits)
    logits = torch.stack(steps, 1)
    return [row[: len(text)] for row, text in zip(logits, texts, strict=True)]


def error(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest error, as a share of the largest logit."""
    pairs = list(zip(found, expected, strict=True))
    worst = max((own - theirs).abs().max().item() for own, theirs in pairs)
    return worst / max(theirs.abs().max().item() for theirs in expected)


def compute_classes(model: Any, texts: list[list[int]]) -> list[Tensor]:
    """Return the probabilities of each text, or of its tokens, from one batch."""
    padded = pad(texts)
    with torch.no_grad():
        if isinstance(model, Model):
            scores = model(padded)
        else:
            mask = (torch.arange(max(LENGTHS)) < padded.lengths[:, None]).long()
            ids = padded.items + (1 - mask) * model.config.pad_token_id
            scores = model(input_ids=ids, attention_mask=mask).logits.softmax(-1)
    scores = scores.items if isinstance(scores, Padded) else scores
    return [
        row[: len(text)] if row.dim() > 1 else row for row, text in zip(scores, texts, strict=True)
    ]


def check_export(run: Any, folder: Path, exported: Path) -> None:
    """Export a run, and compare its tensors with those of a folder."""
    export(run, "transformers", exported, SimpleNamespace(license=None))
    before = load_file(folder / "model.safetensors")
    after = load_file(exported / "model.safetensors")
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []


@pytest.mark.parametrize("case", CLASSIFIERS)
def test_imported_classifier_gives_the_scores_of_transformers(case: str, tmp_path: Path) -> None:
    theirs = create_model(case, 1)
    folder = save_model(theirs, tmp_path / "theirs")
    run = import_model(folder, tmp_path / "run")
    texts, exported = draw_texts(), tmp_path / "exported"
    expected = compute_classes(theirs, texts)
    assert error(compute_classes(run.model, texts), expected) < 1e-5
    check_export(run, folder, exported)
    assert len(run.predict(["t5 t6"])) == 1
    # Without the originals, as of a run that starts from it.
    (run.folder / "artifacts" / "originals.safetensors").unlink(missing_ok=True)
    export(run, "transformers", tmp_path / "tuned", SimpleNamespace(license=None))
    again = type(theirs).from_pretrained(tmp_path / "tuned").eval()
    assert error(compute_classes(again, texts), expected) < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_imported_model_computes_the_logits_of_transformers(case: str, tmp_path: Path) -> None:
    theirs = create_model(case, 1)
    has_source = theirs.config.is_encoder_decoder
    folder = save_model(theirs, tmp_path / "theirs")
    run = import_model(folder, tmp_path / "run")
    texts = draw_texts()
    expected = compute_theirs(theirs, texts)
    model = run.model
    assert error(compute_ours(model, texts, has_source=has_source), expected) < 1e-5
    assert error(compute_steps(model, texts, has_source=has_source), expected) < 1e-5
    exported = tmp_path / "exported"
    check_export(run, folder, exported)
    again = type(theirs).from_pretrained(exported, attn_implementation="eager").eval()
    assert error(compute_theirs(again, texts), expected) == 0


@pytest.mark.parametrize("case", IMAGES)
def test_imported_image_classifier_gives_the_scores_of_transformers(
    case: str, tmp_path: Path
) -> None:
    theirs = create(*IMAGES[case], 1)
    channels, folder = theirs.config.num_channels, tmp_path / "theirs"
    theirs.save_pretrained(folder)
    normalized = {"image_mean": [0.4] * channels, "image_std": [0.3] * channels}
    (folder / "preprocessor_config.json").write_text(json.dumps(normalized))
    run = import_model(folder, tmp_path / "run")
    pixels, exported = torch.rand(4, channels, 12, 12), tmp_path / "exported"
    expected = compute_images(theirs, (pixels - 0.4) / 0.3)
    assert error(compute_images(run.model, pixels), expected) < 1e-5
    check_export(run, folder, exported)
    again = json.loads((exported / "preprocessor_config.json").read_text())
    assert {name: again[name] for name in normalized} == normalized
    image = (pixels[0].movedim(0, 2) * 255).byte().numpy()
    assert run.predict([image])[0] in ("cat", "dog", "owl")
    assert len(run.look([image])) == 1
    check_tuned(run, theirs, tmp_path / "tuned", (pixels - 0.4) / 0.3, expected)


def compute_images(model: Any, pixels: Tensor) -> list[Tensor]:
    """Return the probabilities of each image."""
    with torch.no_grad():
        found = model(pixels)
        return [*(found if isinstance(model, Model) else found.logits.softmax(-1))]


def check_tuned(
    run: Any, theirs: Any, exported: Path, pixels: Tensor, expected: list[Tensor]
) -> None:
    """Export a run without its originals, as one that starts from it, and compare its scores."""
    (run.folder / "artifacts" / "originals.safetensors").unlink(missing_ok=True)
    export(run, "transformers", exported, SimpleNamespace(license=None))
    again = type(theirs).from_pretrained(exported).eval()
    assert error(compute_images(again, pixels), expected) < 1e-5


@pytest.mark.parametrize("recipe", ["reviews", "tags"])
@pytest.mark.parametrize("case", BASES)
def test_imported_encoder_without_classifier_gives_the_states_of_transformers(
    case: str, recipe: str, tmp_path: Path
) -> None:
    theirs = create(*BASES[case], 1)
    folder = save_model(theirs, tmp_path / "theirs")
    run = import_model(folder, tmp_path / "run", recipe=recipe)
    texts, model = draw_texts(), run.model
    padded = pad(texts)
    mask = (torch.arange(max(LENGTHS)) < padded.lengths[:, None]).long()
    ids = padded.items + (1 - mask) * theirs.config.pad_token_id
    with torch.no_grad():
        found = model.core.encode(model.reader(padded)).items
        states = theirs.base_model(ids, attention_mask=mask).last_hidden_state
    lengths = [len(text) for text in texts]
    own = [row[:length] for row, length in zip(found, lengths, strict=True)]
    expected = [row[:length] for row, length in zip(states, lengths, strict=True)]
    assert error(own, expected) < 1e-5
    check_export(run, folder, tmp_path / "exported")
    with pytest.raises(UserError, match=f"without a classifier .*train {recipe} --init"):
        run.predict(["t5 t6"])
    with pytest.raises(UserError, match="without a classifier"):
        export(run, "torch", tmp_path / "graphs", SimpleNamespace())
    assert not model.writer.output.weight.any()
    if recipe == "tags":
        assert len(run.look(["t5 t6 t7"])) == 1


@pytest.mark.parametrize("case", IMAGE_BASES)
def test_imported_encoder_of_images_gives_the_states_of_transformers(
    case: str, tmp_path: Path
) -> None:
    theirs = create(*IMAGE_BASES[case], 1)
    folder = tmp_path / "theirs"
    theirs.save_pretrained(folder)
    run = import_model(folder, tmp_path / "run")
    pixels, model = torch.rand(4, 3, 12, 12), run.model
    with torch.no_grad():
        found = model.writer.encode(model.core, model.reader(pixels)).items
        expected = theirs((pixels - 0.5) / 0.5).last_hidden_state
    assert error([*found], [*expected]) < 1e-5
    check_export(run, folder, tmp_path / "exported")


@pytest.mark.parametrize("case", ["vit", "deit-teacher", "dinov2"])
def test_names_of_blocks_in_transformers_5_are_known(case: str, tmp_path: Path) -> None:
    theirs, tensors = create(*IMAGES[case], 1), []
    for is_old in (True, False):
        folder, run = tmp_path / f"theirs{is_old}", tmp_path / f"run{is_old}"
        theirs.save_pretrained(folder, save_original_format=is_old)
        import_model(folder, run)
        tensors.append(load_file(run / "model.safetensors"))
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])


def test_earlier_names_of_bert_are_known(tmp_path: Path) -> None:
    folder = save_model(create(*BASES["bert-pretraining"], 1), tmp_path / "theirs")
    tensors = load_file(folder / "model.safetensors")
    old = {"bert.embeddings.position_ids": torch.arange(23)[None]}
    for name, value in tensors.items():
        known = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        old[known.replace("LayerNorm.bias", "LayerNorm.beta")] = value
    save_file(old, folder / "model.safetensors")
    run = import_model(folder, tmp_path / "run")
    save_file(tensors, folder / "model.safetensors")
    check_export(run, folder, tmp_path / "exported")


SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16}


def test_other_sizes_of_images_and_other_losses_are_said(tmp_path: Path) -> None:
    theirs, folder, notices = create(*IMAGES["dinov2"], 1), tmp_path / "theirs", list[str]()
    theirs.save_pretrained(folder)
    crop = {"crop_size": {"height": 8, "width": 8}}
    (folder / "preprocessor_config.json").write_text(json.dumps(crop))
    import_folder(folder, tmp_path / "run", notify=notices.append)
    assert notices == [f"{folder}: images are read at 12 pixels a side, not 8"]
    theirs.config.problem_type = "multi_label_classification"
    theirs.save_pretrained(folder)
    with pytest.raises(UserError, match="problem_type must be single_label_classification, got"):
        import_model(folder, tmp_path / "other")
    theirs = create("ViTForImageClassification", hf.ViTConfig(**SIZES, num_labels=1), 1)
    theirs.save_pretrained(tmp_path / "one")
    with pytest.raises(UserError, match="id2label must hold several labels"):
        import_model(tmp_path / "one", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def make_timm(seed: int) -> dict[str, Tensor]:
    """Return tensors of a ViT by the names of timm."""
    shapes = {"cls_token": (1, 1, 20), "pos_embed": (1, 10, 20)}
    shapes |= {"patch_embed.proj.weight": (20, 3, 4, 4), "patch_embed.proj.bias": (20,)}
    maps = {"attn.qkv": (60, 20), "attn.proj": (20, 20), "mlp.fc1": (37, 20), "mlp.fc2": (20, 37)}
    maps = {f"blocks.{n}.{name}": shape for n in range(3) for name, shape in maps.items()}
    for name, shape in (maps | {"head": (4, 20)}).items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in ("norm", *(f"blocks.{n}.norm{k}" for n in range(3) for k in (1, 2))):
        shapes |= {f"{name}.weight": (20,), f"{name}.bias": (20,)}
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def compute_timm(tensors: dict[str, Tensor], pixels: Tensor) -> list[Tensor]:
    """Return the probabilities of each image, by the formula of dosovitskiy2021 with 5 heads."""

    def parts(name: str) -> tuple[Tensor, Tensor]:
        return tensors[f"{name}.weight"], tensors[f"{name}.bias"]

    def norm(items: Tensor, name: str) -> Tensor:
        return F.layer_norm(items, (20,), *parts(name), eps=1e-6)

    patches = F.conv2d(pixels, *parts("patch_embed.proj"), stride=4).flatten(2).mT
    token = tensors["cls_token"].expand(len(pixels), 1, 20)
    items = torch.cat((token, patches), 1) + tensors["pos_embed"]
    for block in ("blocks.0", "blocks.1", "blocks.2"):
        stacked = F.linear(norm(items, f"{block}.norm1"), *parts(f"{block}.attn.qkv"))
        query, key, value = (x.unflatten(-1, (5, 4)).transpose(1, 2) for x in stacked.chunk(3, -1))
        weights = (query @ key.mT / 2).softmax(-1)
        read = (weights @ value).transpose(1, 2).flatten(2)
        items = items + F.linear(read, *parts(f"{block}.attn.proj"))
        hidden = F.gelu(F.linear(norm(items, f"{block}.norm2"), *parts(f"{block}.mlp.fc1")))
        items = items + F.linear(hidden, *parts(f"{block}.mlp.fc2"))
    return [*F.linear(norm(items, "norm")[:, 0], *parts("head")).softmax(-1)]


TORCHVISION = {
    "cls_token": "class_token",
    "pos_embed": "encoder.pos_embedding",
    "patch_embed.proj.": "conv_proj.",
    "blocks.": "encoder.layers.encoder_layer_",
    ".norm1.": ".ln_1.",
    ".norm2.": ".ln_2.",
    ".attn.qkv.": ".self_attention.in_proj_",
    ".attn.proj.": ".self_attention.out_proj.",
    ".fc1.": ".0.",
    ".fc2.": ".3.",
    "head.": "heads.head.",
}
"""Parts of the names of torchvision by those of timm."""


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_imported_vit_of_other_libraries_gives_their_scores(library: str, tmp_path: Path) -> None:
    arguments = {"num_heads": 5, "embed_dim": 20}
    folder, tensors = tmp_path / "theirs", make_timm(1)
    folder.mkdir()
    config = {"architecture": "vit_tiny_patch16_224", "model_args": arguments}
    config |= {"label_names": ["a", "b", "c", "d"], "global_pool": "token"}
    config |= {"pretrained_cfg": {"mean": [0.4, 0.4, 0.4], "std": [0.3, 0.3, 0.3]}}
    renamed = dict(tensors)
    if library == "torchvision":
        config["architecture"], renamed = "vit_b_16", {}
        for name, value in tensors.items():
            known = f"encoder.ln.{name[5:]}" if name.startswith("norm.") else name
            for part, other in TORCHVISION.items():
                known = known.replace(part, other)
            renamed[known] = value
    (folder / "config.json").write_text(json.dumps(config))
    save_file(renamed, folder / "model.safetensors")
    run = import_model(folder, tmp_path / "run")
    pixels, exported = torch.rand(4, 3, 12, 12), tmp_path / "exported"
    expected = compute_timm(tensors, (pixels - 0.4) / 0.3)
    assert error(compute_images(run.model, pixels), expected) < 1e-5
    export(run, "transformers", exported, SimpleNamespace(license=None))
    again = hf.ViTForImageClassification.from_pretrained(exported).eval()
    assert error(compute_images(again, (pixels - 0.4) / 0.3), expected) < 1e-5
    after = load_file(exported / "model.safetensors")
    for block in range(3):
        stem = f"vit.encoder.layer.{block}.attention.attention"
        stacked = [after[f"{stem}.{part}.weight"] for part in ("query", "key", "value")]
        assert torch.equal(torch.cat(stacked), tensors[f"blocks.{block}.attn.qkv.weight"])
    assert again.config.id2label[3] == "d"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architecture": "vit_base_patch16_clip_224"}, "architecture must be a plain ViT, such"),
        ({"architecture": "deit3_base_patch16_224"}, "architecture must be a plain ViT, such"),
        ({"model_args": {"qkv_bias": False}}, "model_args.qkv_bias=False has no place here"),
        ({"global_pool": "avg"}, "global_pool must be 'token', got 'avg'"),
        ({}, "model_args must have num_heads for vectors of size 20"),
        (
            {"model_args": {"num_heads": 4}, "pretrained_cfg": {"mean": [0.5, 0.4]}},
            "config.json: mean and std must be one number or 3, got 2 and 3",
        ),
    ],
)
def test_vit_of_timm_that_is_not_plain_is_refused(
    fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    config = {"architecture": "vit_tiny_patch16_224"} | fields
    (folder / "config.json").write_text(json.dumps(config))
    save_file(make_timm(1), folder / "model.safetensors")
    with pytest.raises(UserError, match=message):
        import_model(folder, tmp_path / "run")


@pytest.mark.parametrize(
    ("architecture", "width", "heads"),
    [
        ("deit_tiny_patch16_224", 192, 3),
        ("vit_small_patch32_384", 384, 6),
        ("vit_b_16", 768, 12),
        ("vit_large_patch16_224", 1024, 16),
        ("vit_h_14", 1280, 16),
    ],
)
def test_name_of_an_architecture_says_the_number_of_heads(
    architecture: str, width: int, heads: int
) -> None:
    shapes = {
        "pos_embed": (1, 197, width),
        "patch_embed.proj.weight": (width, 3, 16, 16),
        "blocks.0.mlp.fc1.weight": (4 * width, width),
        "blocks.0.norm1.weight": (width,),
    }
    config = Timm().translate({"architecture": architecture, "recipe": "images"}, shapes)
    sizes = {"hidden_size": width, "num_attention_heads": heads, "image_size": 224}
    assert {name: config[name] for name in sizes} == sizes


@pytest.mark.parametrize("recipe", ["reviews", "tags"])
def test_classifier_is_trained_on_an_encoder_without_one(recipe: str, tmp_path: Path) -> None:
    folder = save_model(create(*BASES["roberta-mlm"], 1), tmp_path / "theirs")
    run = tmp_path / "run"
    import_model(folder, run, recipe=recipe)
    rows = [f"t{n} t{n + 1}\t{('good', 'bad')[n % 2]}\n" for n in range(5, 45)]
    if recipe == "tags":
        rows = [f"t{n}\tX\nt{n + 1}\tY\n\n" for n in range(5, 45)]
    data = tmp_path / {"reviews": "data.tsv", "tags": "data.conll"}[recipe]
    data.write_text("".join(rows))
    short = ["--train.steps", "2", "--train.warmup", "1", "--train.validate-every", "1"]
    argv = ["train", recipe, "--init", str(run), "--run", str(tmp_path / "new"), *short]
    assert main([*argv, "--data.train", str(data)]) == 0
    trained = regard.load(tmp_path / "new")
    assert trained.run.origin is None
    answer = trained.predict(["t5 t6"])[0]
    assert answer in ("good", "bad") if recipe == "reviews" else set(answer) <= {"X", "Y"}
    export(trained, "transformers", tmp_path / "out", SimpleNamespace(license=None))
    name = json.loads((tmp_path / "out" / "config.json").read_text())["architectures"][0]
    again = getattr(hf, name).from_pretrained(tmp_path / "out").eval()
    texts = draw_texts()
    found, expected = compute_classes(trained.model, texts), compute_classes(again, texts)
    assert error(found, expected) < 1e-5


@pytest.mark.parametrize("year", [4, 5])
def test_output_layer_of_t5_may_be_its_own(year: int, tmp_path: Path) -> None:
    theirs = create_t5(1)
    folder = save_model(theirs, tmp_path / "theirs")
    tensors = load_file(folder / "model.safetensors")
    assert not torch.equal(tensors["lm_head.weight"], tensors["shared.weight"])
    config = json.loads((folder / "config.json").read_text())
    if year == 4:
        del config["scale_decoder_outputs"]
        config["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config))
    run = import_model(folder, tmp_path / "run")
    texts = draw_texts()
    expected = compute_theirs(theirs, texts)
    assert error(compute_ours(run.model, texts, has_source=True), expected) < 1e-5
    check_export(run, folder, tmp_path / "exported")
