"""Runs of `draw` on handwritten digits and on captions; killed runs, bad input."""

import json
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regard.cli.main import main
from regard.data.batches import pad
from regard.data.embedded.scenes import NOTHING, DrawnScene
from regard.data.tokenizer import BOS, EOS, SPECIALS
from regard.look.hooks import record_weights
from regard.recipes.draw.recipe import drawing_paths
from regard.recipes.draw.scores import _count_by_class, describe_canvas
from regard.recipes.draw.stages import CanvasBatches, reconstruct
from regard.recipes.load import load
from tests.recipes.capture_checks import (
    answer_log_probs,
    check_capture,
    check_gradients,
    check_test_input,
)

SMALL = [
    "--autoencoder.channels",
    "8",
    "--autoencoder.codebook-size",
    "32",
    "--autoencoder.code-dim",
    "6",
    "--autoencoder-steps",
    "60",
    "--classifier-steps",
    "60",
    "--data.epoch-size",
    "400",
    "--data.test-size",
    "30",
    "--model.core.width",
    "24",
    "--model.core.layers",
    "1",
    "--model.core.decoder-layers",
    "1",
    "--model.core.feedforward",
    "48",
    "--train.steps",
    "60",
    "--train.lr",
    "5e-3",
    "--train.warmup",
    "10",
    "--train.validate-every",
    "30",
    "--train.tensorboard",
    "false",
    "--train.keep-finished",
    "checkpoints",
    "--threads",
    "1",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("draw") / "run"
    assert main(["train", "draw", "--run", str(folder), *SMALL]) == 0
    return folder


def test_a_run_reports_the_scores_of_its_drawings(run):
    test = json.loads((run / "report.json").read_text())["test"]
    assert test["examples"] == 30
    for name in (
        "prompt_accuracy",
        "item_recall",
        "prompt_accuracy_real",
        "prompt_accuracy_reconstructed",
        "classifier_accuracy",
    ):
        assert 0 <= test[name] <= 100
    # The classifier distinguishes real digits, and the codes are better than chance.
    assert test["classifier_accuracy"] > 60
    assert test["nll"] < np.log(32)
    assert 2 < test["codes_used"] <= 32
    digits = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    assert set(test["by_class"]) <= set(digits)


def test_evaluate_repeats_the_report_and_prints_the_guidance(run, capsys):
    assert main(["evaluate", str(run), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    report = json.loads((run / "report.json").read_text())["test"]
    assert scores == report
    assert main(["evaluate", str(run), "--decode.guidance", "1", "--decode.temperature", "1"]) == 0
    output = capsys.readouterr().out
    assert "guidance 1, temperature 1" in output
    assert "by class, %" in output


def test_predict_writes_files_and_replaces_none_without_force(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["predict", str(run), "two sevens"]) == 0
    assert capsys.readouterr().out == "two-sevens.png\n"
    with Image.open("two-sevens.png") as image:
        assert (image.size, image.mode) == ((16, 8), "L")
        assert np.array_equal(np.asarray(image), load(run).predict(["two sevens"])[0, 0])
    assert main(["predict", str(run), "two sevens"]) == 2
    assert "two-sevens.png exists; it is replaced only with --force" in capsys.readouterr().err
    assert main(["predict", str(run), "two sevens", "--force"]) == 0
    capsys.readouterr()
    assert main(["predict", str(run), "a three", "--out", "x.png", "--n-best", "2"]) == 0
    assert [line.split("\t")[3] for line in capsys.readouterr().out.splitlines()] == [
        "x-1.png",
        "x-2.png",
    ]
    Path("lines.txt").write_text("a three\na four\n", encoding="utf-8")
    assert main(["predict", str(run), "lines.txt", "--out", "y.png"]) == 0
    assert capsys.readouterr().out == "y-1.png\ny-2.png\n"
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [
        *("two-sevens.png", "x-1.png", "x-2.png", "y-1.png", "y-2.png")
    ]


def test_drawings_depend_on_text_and_draw_alone(run):
    model = load(run)
    first = model.predict(["a three", "two sevens"], temperature=1.0)
    assert np.array_equal(first, model.predict(["a three", "two sevens"], temperature=1.0))
    assert np.array_equal(first[:1], model.predict(["a three"], temperature=1.0))
    assert not np.array_equal(
        first, model.predict(["a three", "two sevens"], temperature=1.0, seed=2)
    )


def test_bad_inputs_are_named(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["predict", str(run), " "]) == 2
    assert "input 1 is empty: there is nothing to draw" in capsys.readouterr().err
    Path("lines.txt").write_text("a three\n\n", encoding="utf-8")
    assert main(["predict", str(run), "lines.txt"]) == 2
    assert "input 2 is empty: there is nothing to draw" in capsys.readouterr().err
    assert [path.name for path in tmp_path.glob("*.png")] == ["a-three-1.png"]  # the line before
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["predict", str(run), "a dragon", "--out", "d.png"]) == 0
    assert "never seen in training, so read as unknown: 'dragon'" in capsys.readouterr().err
    assert main(["predict", str(run), "a three", "--out", "d.txt"]) == 2
    assert "d.txt: images can be saved as .png" in capsys.readouterr().err
    assert main(["predict", str(run), "a three", "--out", "gone/d.png"]) == 2
    assert "the folder gone does not exist" in capsys.readouterr().err
    (tmp_path / "test" / "cat").mkdir(parents=True)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "test" / "cat" / "1.png")
    assert main(["evaluate", str(run), "--data.test", "test"]) == 2
    assert "class 'cat' does not occur in the training images" in capsys.readouterr().err


def test_other_images_are_put_on_canvases(run, tmp_path, capsys):
    for number in ("3", "7"):
        (tmp_path / number).mkdir()
        Image.fromarray(np.full((8, 8), 90, np.uint8)).save(tmp_path / number / "1.png")
    assert main(["evaluate", str(run), "--data.test", str(tmp_path), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["by_class"]) == {"three", "seven"}


def test_look_draws_the_attention_to_each_word(run, tmp_path, capsys):
    out, vectors = tmp_path / "look.png", tmp_path / "look.svg"
    for path in (out, vectors):
        assert main(["look", str(run), "a three left of a seven", "--out", str(path)]) == 0
    with Image.open(out) as picture:
        assert picture.size[0] > 500
    titles = re.findall(r">([^<>]+)</text>", vectors.read_text(encoding="utf-8"))
    assert "a three left of a seven" in titles
    assert any(title.startswith("attention weights: cross") for title in titles)
    words = ["a", "three", "left", "of", "a", "seven", "&lt;/s&gt;"]
    assert [title.split()[0] for title in titles[:7]] == words
    shares = [float(title.split()[1]) for title in titles[:7]]
    assert sum(shares) == pytest.approx(1, abs=0.04)  # each is written with two digits
    assert main(["look", str(run), "a three", "--out", str(out)]) == 2
    assert "already exists" in capsys.readouterr().err


def test_look_relates_codes_to_words(run):
    model = load(run)
    texts = ["a three left of a seven", "a two"]
    first, second = check_capture(model, texts)
    drawings = model.predict(texts)
    rows, columns = model.recipe.autoencoder.grid
    for sample_maps, text, image in zip((first, second), texts, drawings, strict=True):
        assert sample_maps.sample.title == text
        assert np.array_equal(sample_maps.sample.pictures["drawn"].pixels, image[0])
        assert sample_maps.sample.axes["source"].labels[-1] == "</s>"
        output = sample_maps.sample.axes["output"]
        assert (len(output), output.picture) == (rows * columns, "drawn")
        assert output.places[-1] == pytest.approx(
            (1 - 1 / columns, 1 - 1 / rows, 1 / columns, 1 / rows)
        )
        codes = torch.tensor([[int(label) for label in output.labels]])
        assert np.array_equal(reconstruct(model.recipe.autoencoder, codes)[0], image)
        (cross,) = sample_maps.find("cross")
        # Weights of the steps equal those of teacher forcing with the same codes.
        source = pad([[*model.recipe.tokenizer.encode(text), EOS]])
        target = pad([[BOS, *(codes[0] + len(SPECIALS)).tolist()]])
        with record_weights(model.model) as maps, torch.no_grad():
            model.model(source, target)
        torch.testing.assert_close(
            cross.weights, maps[cross.name][0][0][:, : len(output)], atol=1e-5, rtol=0
        )
    assert isinstance(check_test_input(model), str)


def test_gradients_are_those_of_the_sampled_codes(run):
    trained = load(run)
    texts = ["a three left of a seven", "a two"]
    for log_prob, sample_maps in zip(
        answer_log_probs(trained, texts), check_gradients(trained, texts), strict=True
    ):
        probabilities = [step.probability for step in sample_maps.sample.steps]
        assert log_prob().item() == pytest.approx(np.log(probabilities).sum(), abs=1e-3)


def test_a_resumed_run_ends_with_the_same_parameters_and_does_not_retrain_the_autoencoder(
    run, tmp_path
):
    """Resume a run as if killed after step 30: with the first checkpoint and nothing later."""
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / "report.json").unlink()
    checkpoints = sorted((folder / "checkpoints").glob("step-*"))
    assert len(checkpoints) == 2
    shutil.rmtree(checkpoints[1])
    stages = [*folder.glob("autoencoder*/*"), *folder.glob("classifier*/*")]
    times = [path.stat().st_mtime_ns for path in stages]
    assert main(["train", "draw", "--run", str(folder), *SMALL]) == 0
    assert (folder / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    assert [path.stat().st_mtime_ns for path in stages] == times


def test_a_run_killed_in_its_first_stage_resumes_to_the_same_autoencoder(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    for name in ("report.json", "autoencoder.json", "classifier.json", "model.safetensors"):
        (folder / name).unlink()
    for name in ("classifier", "checkpoints", "snapshots"):
        shutil.rmtree(folder / name)
    last = sorted((folder / "autoencoder" / "checkpoints").glob("step-*"))[-1]
    shutil.rmtree(last)
    assert main(["train", "draw", "--run", str(folder), *SMALL]) == 0
    for name in (
        "autoencoder/model.safetensors",
        "classifier/model.safetensors",
        "model.safetensors",
    ):
        assert (folder / name).read_bytes() == (run / name).read_bytes()


def test_own_captions_are_learned_without_classes(tmp_path, capsys):
    rows = []
    for number in range(24):
        image = np.zeros((8, 12, 3), np.uint8)
        name = ("red", "green", "blue")[number % 3]
        image[:, :, number % 3] = 200 + number
        Image.fromarray(image).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png\ta {name} wall\n")
    (tmp_path / "all.tsv").write_text("".join(rows), encoding="utf-8")
    path = tmp_path / "all.tsv"
    files = f"--data.train {path} --data.test {path} --data.val-share 0.2".split()
    run = tmp_path / "run"
    assert main(["train", "draw", "--run", str(run), *files, *SMALL]) == 0
    test = json.loads((run / "report.json").read_text())["test"]
    assert "prompt_accuracy" not in test
    assert test["nll"] < 1.0
    assert not (run / "classifier.json").exists()
    capsys.readouterr()
    assert main(["predict", str(run), "a red wall", "--out", str(tmp_path / "red.png")]) == 0
    with Image.open(tmp_path / "red.png") as image:
        assert (image.size, image.mode) == ((12, 8), "RGB")
    assert main(["evaluate", str(run), "--data.test", str(tmp_path)]) == 2
    assert "expected a table of images with texts, as in training" in capsys.readouterr().err


def test_too_few_positions_are_reported_before_training(tmp_path, capsys):
    arguments = ["train", "draw", "--run", str(tmp_path / "run"), *SMALL]
    arguments += ["--model.core.positions", "learned", "--model.core.positions.max-length", "20"]
    assert main(arguments) == 2
    assert (
        "model.core.positions.max_length must be at least 33, one more than the codes of a canvas"
        in capsys.readouterr().err
    )
    assert (
        main(["train", "draw", "--run", str(tmp_path / "run"), "--autoencoder.kind", "dense"]) == 2
    )
    assert "autoencoder.kind must be quantized, got dense" in capsys.readouterr().err


def test_items_are_counted_by_class():
    scenes = [
        DrawnScene("", (0, 0), (0, 0)),
        DrawnScene("", (0, 2), (0, 0)),
        DrawnScene("", (NOTHING, 1), (0, 0)),
    ]
    predictions = [(0, 1), (2, 0), (1, NOTHING)]
    assert _count_by_class(scenes, predictions) == {0: (3, 2), 2: (1, 1), 1: (1, 1)}
    assert describe_canvas((2, NOTHING, 2), ("a", "b", "sandal")) == "two sandals"
    assert describe_canvas((NOTHING,), ("a",)) == "nothing"


def test_paths_of_drawings():
    assert drawing_paths(["Two ankle boots!"], None, first=1, count=1) == [
        [Path("Two-ankle-boots.png")]
    ]
    assert drawing_paths(["a", "a"], Path("d/x.png"), first=3, count=1) == [
        [Path("d/x-3.png")],
        [Path("d/x-4.png")],
    ]
    assert drawing_paths(["?"], None, first=1, count=2) == [
        [Path("drawing-1.png"), Path("drawing-2.png")]
    ]


def test_canvases_are_shuffled_in_each_epoch(run):
    drawings = load(run).recipe._splits[0]
    batches = CanvasBatches(drawings, size=150, seed=3)
    first, second = batches.plan(0), batches.plan(1)
    assert sorted(i for rows in first for i in rows) == list(range(400))
    assert sorted(i for rows in second for i in rows) == list(range(400, 800))
    assert first == CanvasBatches(drawings, size=150, seed=3).plan(0)
    assert first[0] != tuple(range(150))
    batch = batches.collate(0, (5, 3))
    assert torch.equal(batch.source[1] * 255, torch.from_numpy(drawings.canvas(3)).float())


def test_scores_of_drawings_equal_those_of_teacher_forcing(run):
    trained = load(run)
    texts = trained.recipe.tokenizer.encode_batch(["a three", "a four left of a seven"])
    recipe = trained.recipe.change({"guidance": 1.0, "temperature": 1.0})
    codes, scores = recipe.sample_codes(trained.model, texts, seeds=[1, 2])
    for ids, row, score in zip(texts, codes, scores, strict=True):
        target = [BOS, *(row + len(SPECIALS)).tolist(), EOS]
        with torch.no_grad():
            logits = trained.model(pad([[*ids, EOS]]), pad([target]))[0, :-1]
        logits[:, : len(SPECIALS)] = -torch.inf
        log_p = logits.log_softmax(-1).gather(1, row[:, None] + len(SPECIALS))
        assert float(log_p.mean()) == pytest.approx(score, abs=1e-4)


def test_a_fraction_of_texts_is_dropped_in_training_only(run):
    recipe = load(run).recipe
    drawings = recipe._splits[0]
    lengths = recipe.encode_drawings(drawings).sources.lengths
    dropped = recipe.encode_drawings(drawings, caption_dropout=0.3).sources.lengths
    assert (lengths > 0).all()
    assert 0.2 < float((dropped == 0).mean()) < 0.4
    assert set(dropped[dropped > 0] - lengths[dropped > 0]) == {0}
    repeated = recipe.encode_drawings(drawings, caption_dropout=0.3)
    assert np.array_equal(repeated.sources.lengths, dropped)
    other = recipe.encode_drawings(drawings, epoch=1, caption_dropout=0.3)
    assert not np.array_equal(other.sources.lengths, dropped)
