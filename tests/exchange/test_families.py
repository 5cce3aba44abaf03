"""Imported models compute what Transformers does, and exports have the same tensors."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.batches import pad
from regard.exchange.formats import export
from regard.models.model import Model
from tests.exchange.small import (
    CASES,
    CLASSIFIERS,
    VOCAB,
    create_model,
    create_t5,
    import_model,
    randomize,
    save_model,
)

LENGTHS = (13, 4, 9)


def draw_texts(seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
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
    for seed in range(3):
        theirs = create_model(case, seed)
        folder = save_model(theirs, tmp_path / f"theirs{seed}")
        run = import_model(folder, tmp_path / f"run{seed}")
        texts, exported = draw_texts(seed), tmp_path / f"exported{seed}"
        expected = compute_classes(theirs, texts)
        assert error(compute_classes(run.model, texts), expected) < 1e-5
        check_export(run, folder, exported)
        assert len(run.predict(["t5 t6"])) == 1
        # Without the originals, as of a run that starts from it.
        (run.folder / "artifacts" / "originals.safetensors").unlink(missing_ok=True)
        export(run, "transformers", tmp_path / f"tuned{seed}", SimpleNamespace(license=None))
        again = type(theirs).from_pretrained(tmp_path / f"tuned{seed}").eval()
        assert error(compute_classes(again, texts), expected) < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_imported_model_computes_the_logits_of_transformers(case: str, tmp_path: Path) -> None:
    for seed in range(3):
        theirs = create_model(case, seed)
        has_source = theirs.config.is_encoder_decoder
        folder = save_model(theirs, tmp_path / f"theirs{seed}")
        run = import_model(folder, tmp_path / f"run{seed}")
        texts = draw_texts(seed)
        expected = compute_theirs(theirs, texts)
        model = run.model
        assert error(compute_ours(model, texts, has_source=has_source), expected) < 1e-5
        assert error(compute_steps(model, texts, has_source=has_source), expected) < 1e-5
        exported = tmp_path / f"exported{seed}"
        check_export(run, folder, exported)
        again = type(theirs).from_pretrained(exported, attn_implementation="eager").eval()
        assert error(compute_theirs(again, texts), expected) == 0


@pytest.mark.parametrize("channels", [1, 3])
def test_imported_image_classifier_gives_the_scores_of_transformers(
    channels: int, tmp_path: Path
) -> None:
    config = hf.ViTConfig(
        hidden_size=20,
        num_hidden_layers=3,
        num_attention_heads=5,
        intermediate_size=37,
        image_size=12,
        patch_size=4,
        num_channels=channels,
        id2label={0: "cat", 1: "dog", 2: "owl"},
    )
    theirs = randomize(hf.ViTForImageClassification(config), std=0.6)
    folder = tmp_path / "theirs"
    theirs.save_pretrained(folder)
    normalized = {"image_mean": [0.4] * channels, "image_std": [0.3] * channels}
    (folder / "preprocessor_config.json").write_text(json.dumps(normalized))
    run = import_model(folder, tmp_path / "run")
    pixels = torch.rand(4, channels, 12, 12)
    with torch.no_grad():
        found, expected = run.model(pixels), theirs((pixels - 0.4) / 0.3).logits.softmax(-1)
    assert error([found], [expected]) < 1e-5
    check_export(run, folder, tmp_path / "exported")
    again = json.loads((tmp_path / "exported" / "preprocessor_config.json").read_text())
    assert {name: again[name] for name in normalized} == normalized
    image = (pixels[0].movedim(0, 2) * 255).byte().numpy()
    assert run.predict([image])[0] in ("cat", "dog", "owl")


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
    texts = draw_texts(1)
    expected = compute_theirs(theirs, texts)
    assert error(compute_ours(run.model, texts, has_source=True), expected) < 1e-5
    check_export(run, folder, tmp_path / "exported")
