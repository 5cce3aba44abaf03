"""Runs of `caption`: own images and drawn scenes, references, beams, looks, bad input."""

import html
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch
from PIL import Image

from regard.data.batches import pad
from regard.data.images.box_batches import stack_images
from regard.data.tokenizer import BOS, EOS
from regard.look.hooks import record_weights
from regard.recipes.caption.config import CaptionRunConfig
from regard.recipes.load import load
from regard.recipes.metrics.config import BleuConfig
from regard.recipes.metrics.text import bleu
from tests.recipes.capture_checks import (
    answer_log_probs,
    check_capture,
    check_gradients,
    check_test_input,
)
from tests.recipes.commands import command, failure, printed, printed_json, report

SIZE = (
    "--data.width 32 --data.height 24 --downsampling-layers 3 --model.core.width 24 "
    "--model.dropout 0"
)
LIMITS = (
    "--train.lr 5e-3 --train.warmup 10 --train.precision float32 --train.tensorboard false "
    "--threads 1"
)
CORES = {
    "transformer": "--model.core.layers 1 --model.core.decoder-layers 1 --model.core.heads 2 "
    "--model.core.feedforward 48",
    "recurrent": "--model.core recurrent --model.core.hidden 24 --model.core.attention-hidden 12",
    "self-attentive": "--model.core self-attentive --model.core.hidden 24 "
    "--model.core.attention-hidden 12",
}


def picture(draw: np.random.Generator) -> tuple[Image.Image, list[str]]:
    """Return a red or green square on the left or right, and two captions."""
    pixels = np.zeros((24, 32, 3), np.uint8)
    color, side = int(draw.integers(2)), int(draw.integers(2))
    x, y = 16 * side + int(draw.integers(0, 8)), int(draw.integers(0, 16))
    pixels[y : y + 8, x : x + 8, color] = 255
    name, place = ("red", "green")[color], ("left", "right")[side]
    captions = [f"a {name} square on the {place}", f"on the {place} is a {name} square"]
    return Image.fromarray(pixels), captions


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("caption"), np.random.default_rng(1)
    files = ""
    for split, count in (("train", 48), ("val", 8), ("test", 12)):
        (folder / split).mkdir()
        with (folder / f"captions_{split}.tsv").open("w", encoding="utf-8") as file:
            for i in range(count):
                image, texts = picture(draw)
                image.save(folder / split / f"{i}.png")
                file.writelines(f"{split}/{i}.png\t{text}\n" for text in texts)
        files += f"--data.{split} {folder}/captions_{split}.tsv "
    steps = "--train.steps 150 --train.validate-every 75 --batch 16 --decode.beam 3"
    core = CORES["transformer"]
    command(f"train caption --run {folder}/run {files} {SIZE} {LIMITS} {core} {steps}")
    return folder


def test_captions_are_learned_and_scored_with_all_references(folder, capsys):
    test, trained = report(folder / "run"), load(folder / "run")
    assert test["examples"] == 12
    assert test["bleu"] > 70
    assert test["signature"].startswith("nrefs:2|case:lc")
    assert test["perplexity"] == pytest.approx(math.exp(test["nll"]))
    paths = [folder / "test" / f"{i}.png" for i in range(12)]
    outputs = trained.predict(paths)
    lines = (folder / "captions_test.tsv").read_text().splitlines()
    texts = [line.split("\t")[1] for line in lines]
    references = [texts[i : i + 2] for i in range(0, 24, 2)]
    bleu = sacrebleu.corpus_bleu(outputs, [texts[::2], texts[1::2]])
    assert test["bleu"] == pytest.approx(bleu.score)
    right = sum(output in own for output, own in zip(outputs, references, strict=True))
    assert test["exact_match"] == pytest.approx(100 * right / 12)
    # The loss is that of every caption.
    total = count = 0.0
    for path, own in zip(paths, references, strict=True):
        with Image.open(path) as image:
            source = stack_images([np.asarray(image.convert("RGB"))])
        for text in own:
            ids = [BOS, *trained.recipe.tokenizer.encode(text), EOS]
            with torch.no_grad():
                log_p = trained.model(source, pad([ids]))[0].log_softmax(-1)
            total -= float(log_p.gather(1, torch.tensor(ids[1:])[:, None]).sum())
            count += len(ids) - 1
    assert test["nll"] == pytest.approx(total / count, rel=1e-4)
    other = ("--data.test", folder / "captions_test.tsv", "--data.images", folder)
    assert printed_json(capsys, "evaluate", folder / "run", *other) == test


def validation(run: Path) -> dict[str, float]:
    return json.loads((run / "report.json").read_text())["validation"]


def test_short_captions_select_by_chrf(folder, tmp_path, capsys):
    assert validation(folder / "run").keys() == {"bleu", "nll", "perplexity"}
    for split in ("train", "val"):
        lines = (folder / f"captions_{split}.tsv").read_text().splitlines()
        rows = [line.split("\t") for line in lines if "\ta " in line]
        text = "".join(f"{folder}/{name}\t{words.split()[1]} square\n" for name, words in rows)
        (tmp_path / f"{split}.tsv").write_text(text)
    files = f"--data.train {tmp_path}/train.tsv --data.val {tmp_path}/val.tsv"
    steps = f"--train.steps 60 --train.validate-every 30 --batch 16 --run {tmp_path}/run"
    command(f"train caption {files} {SIZE} {LIMITS} {CORES['transformer']} {steps}")
    text = capsys.readouterr().err
    assert "8 of 8 validation captions have fewer than 4 words" in text
    assert "selected: best  chrf" in text
    assert validation(tmp_path / "run")["chrf"] > 0


def test_predict_prints_captions_and_several_with_n_best(folder, capsys):
    run, paths = folder / "run", [str(folder / "test" / f"{i}.png") for i in range(2)]
    trained = load(run)
    captions = trained.predict(paths)
    rows = zip(paths, captions, strict=True)
    assert printed(capsys, "predict", run, *paths).splitlines() == ["\t".join(row) for row in rows]
    with Image.open(paths[0]) as image:
        assert trained.predict([image, np.asarray(image)]) == captions[:1] * 2
    outputs = printed_json(capsys, "predict", run, paths[0], "--decode.n-best", "2")["outputs"]
    ((best, second),) = trained.predict(paths[:1], n_best=2)
    assert [output["text"] for output in outputs] == [best.text, second.text]
    assert best.score >= second.score == pytest.approx(outputs[1]["score"])


def test_other_engines_refuse_images_with_the_reason(folder, capsys):
    path = folder / "test" / "0.png"
    message = failure(capsys, "predict", folder / "run", path, "--engine", "compiled")
    assert "engine 'compiled' does not support this model: its reader" in message


def test_look_shows_the_image_word_by_word(folder, tmp_path):
    trained, paths = load(folder / "run"), [folder / "test" / f"{i}.png" for i in (0, 3)]
    capture = check_capture(trained, paths)
    for sample_maps, path, caption in zip(capture, paths, trained.predict(paths), strict=True):
        sample = sample_maps.sample
        assert sample.title == f"{path.name} -> {caption}"
        (cross,) = sample_maps.find("cross")
        keys, queries = sample_maps.keys(cross), sample_maps.queries(cross)
        assert (len(keys), keys.picture) == (12, "image")
        assert keys.places[-1] == pytest.approx((0.75, 2 / 3, 0.25, 1 / 3))
        assert "".join(queries.labels).replace("\u2581", " ").strip() == f"{caption}</s>"
        assert len(sample.steps) == len(queries)
        # The weights of the steps are those of the same caption in one pass.
        target = pad([[BOS, *sample.output_ids]])
        with record_weights(trained.model) as maps, torch.no_grad():
            trained.model(stack_images([sample.pictures["image"].pixels]), target)
        torch.testing.assert_close(cross.weights, maps[cross.name][0][0], atol=1e-5, rtol=0)
    assert check_test_input(trained).shape == (24, 32, 3)
    command("look", folder / "run", paths[0], "--out", tmp_path / "look.svg")
    content = (tmp_path / "look.svg").read_text(encoding="utf-8")
    titles = re.findall(r">([^<>]+)</text>", content)
    (cross,) = capture[0].find("cross")
    labels = capture[0].queries(cross).labels
    assert len(titles) > len(labels)
    for title, label, weights in zip(titles, labels, cross.weights.mean(0), strict=False):
        assert html.unescape(title).strip() == f"{label} (up to {float(weights.max()):.3g})"


def test_gradients_are_those_of_the_caption(folder):
    trained, paths = load(folder / "run"), [folder / "test" / f"{i}.png" for i in range(2)]
    parts, capture = answer_log_probs(trained, paths), check_gradients(trained, paths)
    for log_prob, sample_maps in zip(parts, capture, strict=True):
        probabilities = [step.probability for step in sample_maps.sample.steps]
        assert log_prob().item() == pytest.approx(sum(map(math.log, probabilities)), abs=1e-3)


@pytest.mark.parametrize("core", CORES)
def test_every_core_describes_drawn_scenes(core, tmp_path):
    data = "--data.epoch-size 40 --data.test-size 6 --tokenizer.kind word --decode.beam 2"
    steps = "--decode.max-extra 12 --train.steps 4 --train.validate-every 4 --batch 8"
    command(f"train caption --run {tmp_path}/run {SIZE} {LIMITS} {CORES[core]} {data} {steps}")
    trained = load(tmp_path / "run")
    pixels = trained.test_input(0)
    capture = check_capture(trained, [pixels])
    (sample_maps,) = capture
    attention_map = sample_maps.find("cross" if core == "transformer" else "recurrent")[0]
    assert sample_maps.keys(attention_map).picture == "image"
    capture.plot(tmp_path / "look.png")
    with Image.open(tmp_path / "look.png") as figure:
        assert figure.size[0] > 300


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data.train {}/bad.tsv", "bad.tsv, line 2: "),
        ("--data.train {}/none.tsv", "none.tsv"),
        ("--data.train {}/long.tsv --data.max-length 2", "long.tsv, line 1: "),
        ("--model.tie all", "model.tie must be target or none: there are no source texts"),
        ("--patch 5", "--patch must divide data.width and data.height, got 5"),
        ("--patch 8 --downsampling-layers 2", "--downsampling-layers must not be given with"),
    ],
)
def test_bad_settings_and_data_are_named_before_any_work(words, message, tmp_path, capsys):
    (tmp_path / "bad.tsv").write_text("1.png\ta cat\n2.png\n", encoding="utf-8")
    for i in range(3):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / f"{i}.png")
    rows = "".join(f"{i}.png\ta long text, {i}\n" for i in range(3))
    (tmp_path / "long.tsv").write_text(rows, encoding="utf-8")
    run, more = tmp_path / "run", words.replace("{}", str(tmp_path))
    assert message in failure(capsys, f"train caption --run {run} {more}")
    assert not run.exists()


def test_learned_positions_limit_the_length_of_captions():
    config = CaptionRunConfig()
    assert (config.positions, config.caption_limit) == (36, 64)
    assert CaptionRunConfig(patch=8).positions == 36
    assert CaptionRunConfig(downsampling_layers=2).positions == 144


def test_bleu_of_several_references_is_sacrebleus():
    outputs = ["a red square", "on the left", "two dogs run"]
    references = [["a red circle", "a red square here", "x"], ["left"], ["two dogs run", "dogs"]]
    streams = [[row[k] if k < len(row) else None for row in references] for k in range(3)]
    found, expected = bleu(outputs, references, BleuConfig()), sacrebleu.BLEU(force=True)
    assert found["bleu"] == expected.corpus_score(outputs, streams).score
    assert found["signature"] == str(expected.get_signature())
    assert "nrefs:var" in found["signature"]
