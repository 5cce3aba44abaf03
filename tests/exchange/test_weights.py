"""Weights that were trained elsewhere: imported, fine-tuned here, and exported again.

REGARD_WEIGHTS=folder1:folder2 pytest --slow tests/exchange/test_weights.py

imports folders of public weights, which the tests cannot download.
"""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from torch import Tensor

import regard
from regard.attention.masks import Padded
from regard.data.batches import pad
from regard.exchange.families.family import family_of
from regard.exchange.files import TensorFiles, read_config
from regard.exchange.formats import export
from regard.recipes.metrics.text import exact_match
from tests.exchange.small import import_model
from tests.exchange.synthetic import make_pairs, make_project_pairs, train_marian

FOLDERS = [Path(name) for name in os.environ.get("REGARD_WEIGHTS", "").split(os.pathsep) if name]
TEXTS = ("The weather is nice today.", "I saw 3 cats & a dog, na\u00efve as they were!", "Yes")
LENGTH = 20


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_marian_gives_the_outputs_of_transformers_and_learns_other_dates(tmp_path: Path) -> None:
    # Two minutes of training there, and one here, on two cores.
    torch.manual_seed(1)
    theirs, tokenizer = train_marian(steps=900)
    for part in (theirs, tokenizer):
        part.save_pretrained(tmp_path / "theirs")
    run = import_model(tmp_path / "theirs", tmp_path / "run")
    texts, expected = map(list, zip(*make_pairs(1000, seed=2), strict=True))
    given = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
    outputs = theirs.generate(**given, num_beams=1, max_new_tokens=20)
    found = run.predict(texts, beam=1, max_length=20)
    assert found == tokenizer.batch_decode(outputs, skip_special_tokens=True)
    assert exact_match(found, [[iso] for iso in expected]) > 95
    data = {}
    for split, count in (("train", 120_000), ("val", 1000)):
        path = tmp_path / f"{split}.tsv"
        lines = ["\t".join(pair) for pair in make_project_pairs(split, count)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        data[split] = str(path)
    train = {"steps": 600, "lr": 1e-3, "tensorboard": False}
    tuned = regard.train(
        "translate", tmp_path / "tuned", init=run.folder, data=data, train=train, quiet=True
    )
    texts, expected = map(list, zip(*make_project_pairs("test", 1000), strict=True))
    assert exact_match(tuned.predict(texts, beam=1), [[iso] for iso in expected]) >= 95


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_folder_of_public_weights_is_imported_and_exported(folder: Path, tmp_path: Path) -> None:
    config = read_config(folder)
    architecture = config["architectures"][0]
    run = import_model(folder, tmp_path / "run")
    run.recipe.notify = print  # unknown characters
    theirs = getattr(hf, architecture).from_pretrained(folder, dtype=torch.float32)
    theirs.set_attn_implementation("eager")
    if run.run.recipe in ("language", "translate") or architecture.endswith("Classification"):
        COMPARISONS[run.run.recipe](run, theirs.eval(), folder)
    export(run, "transformers", tmp_path / "exported", SimpleNamespace(license=None))
    after = load_file(tmp_path / "exported" / "model.safetensors")
    family, given = family_of(config["model_type"]), TensorFiles(folder, architecture)
    full = family.complete(config)
    names = family.rename(given, full)
    left_out = names.keys() - after.keys()
    assert left_out <= {*family.copies, *family.computed(full)}
    assert after.keys() <= names.keys()
    assert [name for name in after if not torch.equal(after[name], given[names[name]])] == []


def check_close(found: Tensor, expected: Tensor) -> None:
    bound = 1e-5 * expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=0, atol=bound)


@torch.no_grad()
def compare_language(run: Any, theirs: Any, folder: Path) -> None:
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    answers = run.predict([*TEXTS], temperature=0, length=LENGTH)
    for text, answer in zip(TEXTS, answers, strict=True):
        given = tokenizer(text, return_tensors="pt")
        (prompt,) = run.recipe.preprocess(text, 1)
        assert prompt.ids == given.input_ids[0].tolist()
        (ids,) = theirs.generate(**given, do_sample=False, max_new_tokens=LENGTH)
        assert tokenizer.decode(ids, skip_special_tokens=True) == text + answer
        found = run.model(target=pad([[*ids.tolist(), 0]]))
        check_close(found, theirs(input_ids=ids[None]).logits)


@torch.no_grad()
def compare_translate(run: Any, theirs: Any, folder: Path) -> None:
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    answers = run.predict([*TEXTS], beam=1, max_length=LENGTH)
    inputs = tokenizer([*TEXTS], return_tensors="pt", padding=True)
    theirs.generation_config.forced_eos_token_id = None  # at the limit of the length
    outputs = theirs.generate(**inputs, num_beams=1, max_new_tokens=LENGTH)
    texts = tokenizer.batch_decode(outputs, skip_special_tokens=True)
    assert [text.strip() for text in texts] == answers
    expected = theirs(**inputs, decoder_input_ids=outputs).logits
    rows = [run.recipe.preprocess(text, 1)[0].ids for text in TEXTS]
    source = pad(rows, run.recipe.source_tokenizer.source_ends)
    assert torch.equal(source.lengths, inputs.attention_mask.sum(1))
    target = torch.nn.functional.pad(outputs, (0, 1))
    lengths = torch.full((len(target),), target.shape[1])
    check_close(run.model(source, Padded(target, lengths)), expected)


@torch.no_grad()
def compare_classes(run: Any, theirs: Any, folder: Path) -> None:
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        given = tokenizer(text, return_tensors="pt")
        own = run.recipe.tokenizer
        ids = [*own.text_ends.before, *own.encode(text), *own.text_ends.after]
        assert ids == given.input_ids[0].tolist()
        scores = run.model(pad([ids]))
        found = scores.items if isinstance(scores, Padded) else scores
        check_close(found, theirs(**given).logits.softmax(-1))


@torch.no_grad()
def compare_images(run: Any, theirs: Any, folder: Path) -> None:
    pixels = torch.rand(2, theirs.config.num_channels, *[theirs.config.image_size] * 2)
    mean, std = (torch.tensor(getattr(run.config, name)) for name in ("image_mean", "image_std"))
    normalized = (pixels - mean[:, None, None]) / std[:, None, None]
    check_close(run.model(pixels), theirs(normalized).logits.softmax(-1))


COMPARISONS = {
    "language": compare_language,
    "translate": compare_translate,
    "reviews": compare_classes,
    "tags": compare_classes,
    "images": compare_images,
}
