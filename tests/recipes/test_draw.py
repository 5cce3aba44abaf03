"""Runs of `draw` on handwritten digits and on captions; killed runs, bad input."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data.batches import InputBatches, pad
from regard.data.embedded.scenes import NOTHING, DrawnScene
from regard.data.tokenizer import BOS, EOS, SPECIALS
from regard.look.hooks import record_weights
from regard.recipes.draw.recipe import drawing_paths
from regard.recipes.draw.scores import count_by_class, describe_canvas, frechet_distance
from regard.recipes.draw.stages import reconstruct
from regard.recipes.load import load
from tests.recipes.capture_checks import (
    answer_log_probs,
    check_capture,
    check_gradients,
    check_test_input,
)
from tests.recipes.commands import command, failure, printed, printed_json, report

SIZES = (
    "--autoencoder.channels 8 --autoencoder.codebook-size 32 --autoencoder.code-dim 6 "
    "--model.core.width 24 --model.core.layers 1 --model.core.decoder-layers 1 "
    "--model.core.feedforward 48 --train.lr 5e-3 --train.precision float32 "
    "--train.tensorboard false --train.keep-finished checkpoints --threads 1"
)
SMALL = (
    f"{SIZES} --autoencoder-steps 60 --classifier-steps 60 --data.epoch-size 400 "
    "--data.test-size 20 --train.steps 60 --train.warmup 10 --train.validate-every 30"
)
SHORT = (
    f"{SIZES} --autoencoder-steps 4 --autoencoder-batch 16 --classifier-steps 2 "
    "--data.epoch-size 40 --data.test-size 2 --train.steps 4 --train.warmup 1 "
    "--train.validate-every 2"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("draw") / "run"
    command(f"train draw --run {folder} {SMALL}")
    return folder


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("short") / "run"
    command(f"train draw --run {folder} {SHORT}")
    return folder


def test_a_run_reports_the_scores_of_its_drawings(run, capsys):
    test = report(run)
    assert test["examples"] == 20
    real, rebuilt = test["prompt_accuracy_real"], test["prompt_accuracy_reconstructed"]
    assert 0 <= test["prompt_accuracy"] <= 100 >= max(real, rebuilt, test["item_recall"])
    # The classifier distinguishes real digits, and the codes are better than chance.
    assert test["classifier_accuracy"] > 60
    assert min(test["frechet"], test["frechet_reconstructed"]) > 0
    assert test["nll"] < np.log(32)
    assert 2 < test["codes_used"] <= 32
    assert {"three", "seven"} <= set(test["classes"])
    assert printed_json(capsys, "evaluate", run) == test
    words = ("--decode.guidance", "1", "--decode.temperature", "1")
    output = printed(capsys, "evaluate", run, *words)
    assert "guidance 1, temperature 1" in output
    assert "recall, %" in output


def test_frechet_distance_is_that_of_normal_distributions():
    one, other = np.array([[0.0], [2.0]]), np.array([[3.0], [9.0]])
    assert frechet_distance(one, other) == pytest.approx((1 - 6) ** 2 + (1 - 3) ** 2)
    draw = np.random.default_rng(1)
    first = draw.normal(size=(40, 5)) @ draw.normal(size=(5, 5))
    assert frechet_distance(first, first + 2) == pytest.approx(5 * 2**2)
    alike = np.repeat(first.mean(0, keepdims=True), 40, 0)  # the mean is right, variety is missing
    assert frechet_distance(alike, first) == pytest.approx(first.var(0).sum())


def test_predict_writes_files_and_replaces_none_without_force(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert printed(capsys, "predict", run, "two sevens") == "two-sevens.png\n"
    with Image.open("two-sevens.png") as image:
        assert (image.size, image.mode) == ((16, 8), "L")
        assert np.array_equal(np.asarray(image), load(run).predict(["two sevens"])[0, 0])
    message = failure(capsys, "predict", run, "two sevens")
    assert "two-sevens.png exists; it is replaced only with --force" in message
    command("predict", run, "two sevens", "--force")
    lines = printed(capsys, "predict", run, "a three", "--out", "x.png", "--n-best", "2")
    assert [line.split("\t")[3] for line in lines.splitlines()] == ["x-1.png", "x-2.png"]
    Path("lines.txt").write_text("a three\na four\n", encoding="utf-8")
    assert printed(capsys, "predict", run, "lines.txt", "--out", "y.BMP") == "y-1.BMP\ny-2.BMP\n"
    with Image.open("y-2.BMP") as image:
        assert (image.size, image.format) == ((16, 8), "BMP")
    assert len(list(tmp_path.iterdir())) == 6


def test_drawings_depend_on_text_and_draw_alone(run):
    model, texts = load(run), ["a three", "two sevens"]
    first = model.predict(texts, temperature=1.0)
    assert np.array_equal(first, model.predict(texts, temperature=1.0))
    assert np.array_equal(first[:1], model.predict(texts[:1], temperature=1.0))
    assert not np.array_equal(first, model.predict(texts, temperature=1.0, seed=2))


def test_bad_inputs_are_named(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("lines.txt").write_text("a three\n\n", encoding="utf-8")
    command("predict", run, "lines.txt")
    assert "line 2: input 2 is empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.glob("*.png")] == ["a-three-1.png"]  # of the other line
    command("predict", run, "a dragon", "--out", "d.png")
    assert "never seen in training, so read as unknown: 'dragon'" in capsys.readouterr().err
    message = failure(capsys, "predict", run, "a three", "--out", "d.txt")
    assert "d.txt: images can be saved as .png" in message
    message = failure(capsys, "predict", run, "a three", "--out", "gone/d.png")
    assert "the folder gone does not exist" in message
    Path("test/cat").mkdir(parents=True)
    Image.new("L", (8, 8)).save("test/cat/1.png")
    message = failure(capsys, "evaluate", run, "--data.test", "test")
    assert "class 'cat' does not occur in the training images" in message


def test_other_images_are_put_on_canvases(run, tmp_path, capsys):
    for number in ("3", "7"):
        (tmp_path / number).mkdir()
        Image.new("L", (8, 8), 90).save(tmp_path / number / "1.png")
    scores = printed_json(capsys, "evaluate", run, "--data.test", tmp_path)
    assert set(scores["classes"]) == {"three", "seven"}


def test_look_relates_codes_to_words(run):
    model, texts = load(run), ["a three left of a seven", "a two"]
    capture = check_capture(model, texts)
    rows, columns = model.recipe.autoencoder.grid
    for sample_maps, text, image in zip(capture, texts, model.predict(texts), strict=True):
        sample = sample_maps.sample
        assert sample.title == text
        assert np.array_equal(sample.pictures["drawn"].pixels, image[0])
        assert sample.axes["source"].labels[-1] == "</s>"
        output = sample.axes["output"]
        assert (len(output), output.picture) == (rows * columns, "drawn")
        last = (1 - 1 / columns, 1 - 1 / rows, 1 / columns, 1 / rows)
        assert output.places[-1] == pytest.approx(last)
        codes = torch.tensor([[int(label) for label in output.labels]])
        assert np.array_equal(reconstruct(model.recipe.autoencoder, codes)[0], image)
        (cross,) = sample_maps.find("cross")
        # Weights of the steps equal those of teacher forcing with the same codes.
        source = pad([[*model.recipe.tokenizer.encode(text), EOS]])
        target = pad([[BOS, *(codes[0] + len(SPECIALS)).tolist()]])
        with record_weights(model.model) as maps, torch.no_grad():
            model.model(source, target)
        expected = maps[cross.name][0][0][:, : len(output)]
        torch.testing.assert_close(cross.weights, expected, atol=1e-5, rtol=0)
    assert isinstance(check_test_input(model), str)


def test_gradients_are_those_of_the_sampled_codes(run):
    trained, texts = load(run), ["a three left of a seven", "a two"]
    parts, capture = answer_log_probs(trained, texts), check_gradients(trained, texts)
    for log_prob, sample_maps in zip(parts, capture, strict=True):
        probabilities = [step.probability for step in sample_maps.sample.steps]
        assert log_prob().item() == pytest.approx(np.log(probabilities).sum(), abs=1e-3)


@pytest.mark.parametrize("stage", ["autoencoder", ""])
def test_a_killed_run_resumes_to_the_same_parameters(stage, short_run, tmp_path):
    """Resume a run as if killed before the last checkpoint, which is removed with all later."""
    folder = tmp_path / "run"
    shutil.copytree(short_run, folder)
    for name in ("report.json", "model.safetensors"):
        (folder / name).unlink()
    if stage:
        for name in ("autoencoder.json", "classifier.json"):
            (folder / name).unlink()
        for name in ("classifier", "checkpoints", "snapshots"):
            shutil.rmtree(folder / name)
    shutil.rmtree(sorted((folder / stage / "checkpoints").glob("step-*"))[-1])
    files = [folder / "autoencoder.json", folder / "autoencoder" / "model.safetensors"]
    times = [path.stat().st_mtime_ns for path in files if path.exists()]
    command(f"train draw --run {folder} {SHORT}")
    for name in ("autoencoder/", "classifier/", ""):
        path = f"{name}model.safetensors"
        assert (folder / path).read_bytes() == (short_run / path).read_bytes()
    if not stage:  # finished stages are not trained again
        assert [path.stat().st_mtime_ns for path in files] == times


def test_first_models_of_two_processes_are_those_of_one(short_run, tmp_path):
    launch = "-m torch.distributed.run --standalone --nproc-per-node 2 -m regard --"
    words = f"{launch} train draw --run {tmp_path}/run {SHORT} --train.steps 1"
    process = subprocess.run(
        [sys.executable, *words.split()], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    for stage in ("autoencoder", "classifier"):
        weights = f"{stage}/model.safetensors"
        assert (tmp_path / "run" / weights).read_bytes() == (short_run / weights).read_bytes()


def test_own_captions_are_learned_without_classes(tmp_path, capsys):
    path, run = tmp_path / "all.tsv", tmp_path / "run"
    with path.open("w", encoding="utf-8") as file:
        for number in range(24):
            image = np.zeros((8, 12, 3), np.uint8)
            image[:, :, number % 3] = 200 + number
            Image.fromarray(image).save(tmp_path / f"{number}.png")
            file.write(f"{number}.png\ta {('red', 'green', 'blue')[number % 3]} wall\n")
    files = f"--data.train {path} --data.test {path} --data.val-share 0.2"
    command(f"train draw --run {run} {files} {SMALL}")
    assert "prompt_accuracy" not in report(run)
    assert report(run)["nll"] < 1.0
    assert not (run / "classifier.json").exists()
    command("predict", run, "a red wall", "--out", tmp_path / "red.png")
    with Image.open(tmp_path / "red.png") as image:
        assert (image.size, image.mode) == ((12, 8), "RGB")
    message = failure(capsys, "evaluate", run, "--data.test", tmp_path)
    assert "expected a table of images with texts, as in training" in message


def test_too_few_positions_are_reported_before_training(tmp_path, capsys):
    positions = "--model.core.positions learned --model.core.positions.max-length 20"
    for words, message in [
        (positions, "must be at least 33, one more than the codes of a canvas"),
        ("--autoencoder.kind dense", "codebook-size has no effect with kind=dense: leave it out"),
    ]:
        assert message in failure(capsys, f"train draw --run {tmp_path}/run {SMALL} {words}")


def test_items_are_counted_by_class():
    scenes = [DrawnScene("", items, (0, 0)) for items in ((0, 0), (0, 2), (NOTHING, 1))]
    requested, recognized = count_by_class(scenes, [(0, 1), (2, 0), (1, NOTHING)])
    assert requested == {0: 3, 2: 1, 1: 1}
    assert recognized == {0: 2, 2: 1, 1: 1}
    assert describe_canvas((2, NOTHING, 2), ("a", "b", "sandal")) == "two sandals"
    assert describe_canvas((NOTHING,), ("a",)) == "nothing"


def test_paths_of_drawings():
    def names(*texts: str, out: Path | None = None, **options: int) -> list[list[str]]:
        return [[str(path) for path in row] for row in drawing_paths(texts, out, **options)]

    assert names("Two ankle boots!", first=1, count=1) == [["Two-ankle-boots.png"]]
    assert names("a", "a", out=Path("d/x.png"), first=3, count=1) == [["d/x-3.png"], ["d/x-4.png"]]
    assert names("?", first=1, count=2) == [["drawing-1.png", "drawing-2.png"]]


def test_canvases_are_shuffled_in_each_epoch(run):
    drawings = load(run).recipe._splits[0]
    batches = InputBatches(drawings.epoch, torch.tensor, rows=150, seed=3)
    first, second = batches.plan(0), batches.plan(1)
    assert sorted(i for rows in first for i in rows) == list(range(400))
    assert sorted(i for rows in second for i in rows) == list(range(400, 800))
    assert first == batches.plan(0)
    assert first[0] != tuple(range(150))


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
