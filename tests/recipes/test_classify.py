"""Runs of `reviews` and `images`: training, use from Python and from the command line, metrics."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data.config import LabeledConfig
from regard.data.text.labels import Labels
from regard.data.tokenizer import BOS, EOS, UNK, Ends
from regard.errors import UserError
from regard.models.readers.images import ImageReader
from regard.models.writers.classes import ClassWriter
from regard.recipes.base.pictures import patch_axis
from regard.recipes.load import load
from regard.recipes.metrics.report import round_scores
from regard.recipes.metrics.vectors import class_scores, label_scores
from regard.recipes.targets.labels import ClassTarget
from regard.training.tensors import read_tensors
from tests.helpers import close
from tests.recipes.capture_checks import (
    answer_log_probs,
    check_capture,
    check_gradients,
    check_test_input,
    outputs_of,
)
from tests.recipes.commands import command, failure, printed, report

WORDS = {
    "good": ["great", "fine", "lovely"],
    "bad": ["awful", "dull", "grim"],
    "odd": ["strange", "queer", "weird"],
}
TRAIN = (
    "--train.warmup 5 --train.lr 5e-3 --train.validate-every 30 --train.precision float32 "
    "--train.tensorboard false"
)
IMAGES = (
    f"train images {TRAIN} --model.core.width 24 --model.core.layers 1 --model.core.feedforward 24 "
    "--augment none --batch 16 --data.val-share 0.2"
)


def files_of(folder: Path, suffix: str) -> list[str]:
    words = " ".join(f"--data.{name} {folder / name}{suffix}" for name in ("train", "val", "test"))
    return words.split()


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reviews")
    for name, number in (("train", 12), ("val", 3), ("test", 3)):
        rows = []
        for i in range(number):
            for kind, words in WORDS.items():
                row = {"text": f"it was {words[i % 3]} {i % 5}", "label": kind}
                rows.append(json.dumps(row) + "\n")
        (folder / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
    small = (
        f"train reviews {TRAIN} --train.steps 60 --tokenizer.min-count 1 --model.core transformer "
        "--model.core.width 16 --model.core.layers 1 --model.core.feedforward 16 --model.dropout 0 "
        "--word-dropout 0.1 --run"
    )
    command(small, folder / "run", *files_of(folder, ".jsonl"))
    return folder / "run"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Horizontal and vertical bars, as files in a folder per class."""
    folder, draw = tmp_path_factory.mktemp("images"), np.random.default_rng(1)
    for split, number in (("train", 24), ("test", 6)):
        for kind in ("lying", "standing"):
            (folder / split / kind).mkdir(parents=True)
            for i in range(number):
                pixels = draw.integers(0, 40, (8, 8)).astype(np.uint8)
                rows = pixels if kind == "lying" else pixels.T
                rows[int(draw.integers(1, 7))] = 255
                Image.fromarray(pixels).save(folder / split / kind / f"{i}.png")
    data = f"--data.train {folder / 'train'} --data.test {folder / 'test'}"
    command(f"{IMAGES} {data} --train.steps 60 --run {folder / 'run'}")
    return folder


def write_rows(path: Path, *rows: str) -> Path:
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def test_label_of_test_data_that_is_unknown_is_reported_before_training(tmp_path, capsys):
    for name, other in (("train", "bad"), ("val", "bad"), ("test", "nice")):
        rows = [f"a {label} film\t{label}" for label in ("good", other)]
        write_rows(tmp_path / f"{name}.tsv", *rows * 4)
    words = "train reviews --tokenizer.min-count 1 --run"
    error = failure(capsys, words, tmp_path / "run", *files_of(tmp_path, ".tsv"))
    assert (
        "test.tsv, line 2: label 'nice' does not occur in the training texts (bad, good)" in error
    )
    assert "step" not in error


def test_reviews_learn_and_answer(reviews):
    test = report(reviews)
    assert (test["examples"], test["accuracy"]) == (9, 100)
    assert test["signature"] == "3 classes: bad, good, odd"
    trained = load(reviews)
    assert trained.predict(["it was grim", "it was lovely"]) == ["bad", "good"]
    ((best, second, third),) = trained.predict(["it was weird"], n_best=9)
    assert best.text == "odd"
    assert best.score > second.score > third.score
    assert best.score + second.score + third.score == pytest.approx(1, abs=1e-5)
    (sample,) = trained.look(["it was xyzzy"])
    assert sample.sample.axes["source"].labels[-1] == "<unk:xyzzy>"
    assert trained.recipe.describe().partition(";")[0] == f"{len(trained.recipe.tokenizer)} words"


def test_texts_have_the_ids_around_them_of_a_pretrained_tokenizer(reviews, monkeypatch):
    recipe = load(reviews).recipe
    (plain,) = recipe.encode_texts(["a good film"])
    monkeypatch.setattr(recipe.tokenizer, "text_ends", Ends((BOS,), (EOS,)))
    around, empty = recipe.encode_texts(["a good film", ""])
    assert around.tolist() == [BOS, *plain.tolist(), EOS]
    assert empty.tolist() == [BOS, UNK, EOS]
    most = recipe.config.data.max_length
    text = recipe.shorten("great " * (most + 9))
    ((_, ids, _),) = recipe.preprocess(text, 1)
    assert len(ids) == most


def test_finished_run_has_the_scores_of_its_training_divided_by_a_temperature(reviews, tmp_path):
    run = tmp_path / "run"
    small = (
        f"train reviews {TRAIN} --train.steps 8 --train.average 0 --tokenizer.min-count 1 "
        "--train.keep-finished checkpoints --model.core.width 8 --run"
    )
    command(small, run, *files_of(reviews.parent, ".jsonl"))
    (selected,) = (run / "snapshots").glob("*")
    trained, weights = read_tensors(selected), read_tensors(run / "model.safetensors")
    temperature = json.loads((run / "report.json").read_text())["validation"]["temperature"]
    assert temperature != pytest.approx(1, abs=0.01)
    for name, tensor in trained.items():
        close(weights[name] * (temperature if name.startswith("writer.output.") else 1), tensor)
    # A run that is stopped before its report finishes with the same weights.
    (run / "report.json").unlink()
    command("train --run", run)
    torch.testing.assert_close(read_tensors(run / "model.safetensors"), weights)


def test_writer_whose_scores_are_others_has_no_temperature(reviews, monkeypatch):
    notes: list[str] = []
    run = load(reviews, notify=notes.append)
    scores = ClassWriter.scores
    monkeypatch.setattr(ClassWriter, "scores", lambda self, x: scores(self, x) + torch.arange(3.0))
    before = run.model.writer.output.weight.clone()
    assert run.recipe.calibrate(run.model) == {}
    close(run.model.writer.output.weight, before)
    assert notes == ["no temperature: the scores of ClassWriter are not `output`'s"]


def test_answers_below_the_threshold_are_rejected_in_every_form(reviews, tmp_path, capsys):
    texts = ["it was great", "it was dull"]
    assert load(reviews).predict(texts, threshold=1.0) == ["<reject>"] * 2
    answer = json.loads(printed(capsys, "predict", reviews, texts[0], "--threshold", 1, "--json"))
    assert answer["label"] == "<reject>"
    assert answer["labels"]["good"] == answer["probability"]
    command("predict", reviews, texts[0], "--threshold", 1, "--out", tmp_path / "answers.csv")
    row = (tmp_path / "answers.csv").read_text().splitlines()[1].split(",")
    assert row[:2] == [texts[0], "<reject>"]
    words = ("evaluate", reviews, "--threshold", 1, "--predictions", tmp_path / "answers.jsonl")
    scores = json.loads(printed(capsys, *words, "--json"))
    assert (scores["accuracy"], scores["coverage"]) == (100, 0)
    lines = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert {json.loads(line)["label"] for line in lines} == {"<reject>"}
    assert "coverage (inputs that are answered), %" in printed(capsys, *words[:4])


def test_text_of_unknown_words_has_a_notice(reviews):
    notes: list[str] = []
    load(reviews, notify=notes.append).predict(["xyzzy plugh", "it xyzzy", "plugh"])
    expected = "all of its words are unknown, so the answer does not depend on them"
    assert notes == [f"input 1: {expected}", f"input 3: {expected}"]


def test_reviews_answer_on_the_command_line_and_blank_lines_have_empty_answers(
    reviews, capsys, tmp_path
):
    lines = write_rows(tmp_path / "lines.txt", "it was dull", "", "  ", "it was great")
    message = failure(capsys, "predict", reviews, "it was dull", "")
    assert "input 2 is empty: it has no words to classify" in message
    command("predict", reviews, lines)
    out, err = capsys.readouterr()
    assert out == "bad\n\n\ngood\n"
    assert "lines.txt, line 3: input 3 is empty" in err
    assert "skipped 2 of 4 inputs" in err
    table = printed(capsys, "predict", reviews, "it was queer", "--n-best", "2")
    rows = [line.split("\t") for line in table.splitlines()]
    assert [row[:2] for row in rows] == [["1", "1"], ["1", "2"]]
    assert rows[0][3] == "odd"


def test_other_texts_are_scored_and_bad_ones_named_or_left_out(reviews, capsys, tmp_path):
    other = write_rows(tmp_path / "other.tsv", "it was dull\tbad", "it was great\tnice", "\tbad")
    words = ("evaluate", reviews, "--data.test", other)
    assert "other.tsv, line 3: " in failure(capsys, *words)
    command(*words, "--data.on-bad", "skip", "--json")
    out, err = capsys.readouterr()
    scores = json.loads(out)
    assert (scores["examples"], scores["accuracy"]) == (1, 100)
    assert "skipped 1 of the texts; first: " in err
    unknown = write_rows(tmp_path / "unknown.tsv", "it was dull\tbad", "it was great\tnice")
    error = failure(capsys, "evaluate", reviews, "--data.test", unknown)
    assert "line 2: label 'nice' does not occur in the training texts (bad, good, odd)" in error


def test_look_with_a_self_attentive_core_shows_chains(reviews, tmp_path):
    small = (
        "train reviews --model.core self-attentive --model.core.width 16 --model.core.hidden 16 "
        "--model.core.cell rnn --train.steps 2 --train.validate-every 2 --train.tensorboard false "
        "--tokenizer.min-count 1 --run"
    )
    command(small, tmp_path / "run", *files_of(reviews.parent, ".jsonl"))
    (maps,) = check_capture(load(tmp_path / "run"), ["it was awful"])
    labels = {}
    for found in maps.find("chain"):
        labels[found.direction] = maps.keys(found).labels
        torch.testing.assert_close(found.weights.sum(-1), torch.ones(1, 3))
    assert labels == {"forward": ("it", "was", "awful"), "backward": ("awful", "was", "it")}
    assert maps.sample.title.startswith("it was awful -> ")
    check_gradients(load(tmp_path / "run"), ["it was awful", "it was"])


def test_look_shows_the_weights_of_the_pooling(reviews):
    trained = load(reviews)
    first, second = check_capture(trained, ["it was awful", " it was a lovely fine one "])
    (pooling,) = first.find("pooling")
    assert first.keys(pooling).labels == ("it", "was", "awful")
    assert first.queries(pooling).labels == ("bad",)
    assert first.sample.title.startswith("it was awful -> bad (")
    assert second.sample.title.startswith("it was a lovely fine one -> good (")
    assert check_test_input(trained) == "it was great 0"
    for inputs, error in ((["it was awful", " "], "input 2 is empty"), ([], "is empty")):
        with pytest.raises(UserError, match=error):
            trained.look(inputs)
    with pytest.raises(TypeError, match="must be a list"):
        trained.look("it was awful")


def test_gradients_are_those_of_the_predicted_class(reviews, pictures):
    images = [pictures / "test" / kind / "0.png" for kind in ("lying", "standing")]
    texts = ["it was awful", " it was a lovely fine one "]
    for run, inputs in ((reviews, texts), (pictures / "run", images)):
        trained = load(run)
        check_gradients(trained, inputs)
        for given in inputs:
            ((best,),) = trained.predict([given], n_best=1)
            log_p = answer_log_probs(trained, [given])[0]().item()
            assert log_p == pytest.approx(np.log(best.score), abs=1e-5)


def test_images_learn_and_answer(pictures, capsys):
    run, test = pictures / "run", report(pictures / "run")
    assert test["examples"] == 12
    assert test["accuracy"] >= 90
    standing, lying = (pictures / "test" / kind / "0.png" for kind in ("standing", "lying"))
    assert load(run).predict([str(standing)]) == ["standing"]
    assert printed(capsys, "predict", run, standing) == "standing\n"
    labels = load(run).predict([standing, lying])
    rows = printed(capsys, "predict", run, standing, lying).splitlines()
    assert rows == [f"{standing}\t{labels[0]}", f"{lying}\t{labels[1]}"]
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(standing) as image:
        image.transpose(Image.Transpose.ROTATE_90).save(pictures / "turned.png", exif=exif)
    assert load(run).predict([pictures / "turned.png"]) == ["standing"]
    (pictures / "train" / "standing" / "a.heic").write_bytes(b"x")
    command("evaluate", run, "--data.test", pictures / "train", "--json")
    captured = capsys.readouterr()
    assert json.loads(captured.out)["examples"] == 48
    assert "train: skipped 1 other files; first: " in captured.err


def test_look_at_images_shows_patches_on_the_model_input(pictures):
    trained, path = load(pictures / "run"), pictures / "test" / "standing" / "0.png"
    with Image.open(path) as image:
        pixels = np.asarray(image)
    of_file, of_pixels = check_capture(trained, [str(path), pixels[None]])
    assert of_file.sample.title.startswith("0.png -> standing (")
    assert of_pixels.sample.title.startswith("image 2 -> standing (")
    for maps in (of_file, of_pixels):
        assert np.array_equal(maps.sample.pictures["image"].pixels, pixels)
        (pooled,) = maps.find("pooling")
        assert pooled.weights.shape == (4, 1, 4)
        assert maps.queries(pooled).labels == ("standing",)
        corners = ((0, 0), (0.5, 0), (0, 0.5), (0.5, 0.5))
        assert maps.keys(pooled).places == tuple((*corner, 0.5, 0.5) for corner in corners)
    test_input = check_test_input(trained)
    assert test_input.size == (8, 8)
    (named,) = trained.look([test_input], names=["test image 0"])
    assert named.sample.title.startswith("test image 0 -> ")


def test_the_class_token_is_an_item_before_the_patches(pictures, tmp_path):
    data = f"--data.train {pictures / 'train'} --data.test {pictures / 'test'}"
    command(f"{IMAGES} {data} --train.steps 9 --model.pool first --run {tmp_path / 'run'}")
    trained, path = load(tmp_path / "run"), str(pictures / "test" / "standing" / "0.png")
    (maps,) = check_capture(trained, [path])
    assert maps.find("pooling") == ()
    (found,) = maps.find("encoder self")
    keys = maps.keys(found)
    assert (keys.labels[0], keys.places[0], keys.places[1]) == ("[class]", None, (0, 0, 0.5, 0.5))
    trained.look([path]).plot(tmp_path / "look.png")


def test_files_pillow_images_and_arrays_of_any_size_are_equal(pictures, tmp_path):
    trained = load(pictures / "run")
    draw = np.random.default_rng(0)
    for shape in ((8, 8), (12, 20), (12, 20, 3), (12, 20, 4), (3, 20, 3)):
        pixels = draw.integers(0, 256, shape, np.uint8)
        image = Image.fromarray(pixels)
        image.save(path := tmp_path / "a.png")
        forms = [path, image, pixels]
        if pixels.ndim == 2:
            forms += [pixels[..., None], pixels[None]]  # (height, width, 1), (1, height, width)
        if shape == (12, 20, 3):
            forms.append(pixels.transpose(2, 0, 1))
        rows = [trained.recipe.preprocess(trained._read_input(form, 1), 1)[0] for form in forms]
        assert {row.shape for row in rows} == {trained.recipe._splits.shape}
        assert all(np.array_equal(row, rows[0]) for row in rows)
    expected = trained.recipe.load("test").data.pixels[0]
    assert np.array_equal(trained.recipe.preprocess(trained.test_input(0), 1)[0], expected)


def test_test_images_of_another_size_are_resized_as_inputs_are(pictures, tmp_path):
    recipe = load(pictures / "run").recipe
    (tmp_path / "test" / "standing").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 20), np.uint8)
    images, expected = [pixels, pixels[:8, :8]], []
    for name, image in zip("ab", images, strict=True):
        Image.fromarray(image).save(tmp_path / "test" / "standing" / f"{name}.png")
        expected.append(recipe.preprocess(image, 1)[0])
    examples = recipe.change({"test": str(tmp_path / "test")}, for_test=True).load("test")
    assert np.array_equal(examples.data.pixels, expected)


def test_patches_that_extend_beyond_the_edge_are_cut():
    axis = patch_axis(ImageReader((3, 10, 6), 8, downsampling_layers=2))
    assert axis.labels[-1] == "row 3, column 2"
    assert axis.places[0] == pytest.approx((0, 0, 4 / 6, 4 / 10))
    assert axis.places[-1] == pytest.approx((4 / 6, 8 / 10, 2 / 6, 2 / 10))


def test_images_that_cannot_be_read_are_named(pictures, tmp_path):
    trained = load(pictures / "run")
    with pytest.raises(UserError, match=r"input 1: nothing\.png: no such file"):
        trained.predict(["nothing.png"])
    (tmp_path / "crooked").mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "crooked" / "a.png")
    with pytest.raises(UserError, match=r"a.png: class 'crooked' does not occur in the training"):
        trained.evaluate(tmp_path)


def test_contributions_sum_to_the_scores_of_the_answer(reviews, pictures, tmp_path):
    def check(run: Any, given: Any, scores: Sequence[Any], names: Sequence[str]) -> None:
        (found,) = run.look([given])[0].find(measure="contribution")
        assert found.heads == tuple(names)
        expected = torch.tensor([float(score) for score in scores])
        close(found.weights[:, 0].sum(-1), expected)

    run = load(reviews)
    p = outputs_of(run, ["it was lovely 3"])[0].double().log()
    order = p.argsort(descending=True).tolist()
    names = [run.recipe.target.names[i] for i in order]
    check(run, "it was lovely 3", [p[i] - (p.sum() - p[i]) / 2 for i in order], names)
    photos, photo = load(pictures / "run"), pictures / "test" / "lying" / "0.png"
    (output,) = outputs_of(photos, [photo])
    names = [one.text for one in photos.recipe.target.rank(output)[:2]]
    check(photos, photo, [output.max().logit(), -output.max().logit()], names)
    command("look", reviews, "lovely", "--view", "contributions", "--out", tmp_path / "why.svg")
    assert "bias" in (tmp_path / "why.svg").read_text(encoding="utf-8")


def test_without_terms_a_note_says_that_contributions_are_not_shown(reviews):
    notes: list[str] = []
    run = load(reviews, notify=notes.append)
    run.model.writer.norm = torch.nn.Tanh()
    assert not run.look(["a lovely film"])[0].find(measure="contribution")
    (note,) = notes
    assert note.startswith("contributions to the scores are not shown: the output layer is not a")


def test_class_scores_by_hand():
    probabilities = torch.tensor([[0.9, 0.1, 0], [0.2, 0.8, 0], [0.6, 0.4, 0], [0.1, 0.7, 0.2]])
    scores = class_scores(probabilities, torch.tensor([0, 1, 1, 1]), ("a", "b", "c"))
    assert scores["accuracy"] == 75
    assert scores["macro_f1"] == pytest.approx(100 * (2 / 3 + 4 / 5) / 2)
    assert scores["nll"] == pytest.approx(-np.log([0.9, 0.8, 0.4, 0.7]).mean(), abs=1e-6)
    ranked = ClassTarget(Labels(("a", "b", "c")), LabeledConfig()).rank(probabilities[3])[:2]
    assert [answer.text for answer in ranked] == ["b", "c"]
    target, predicted = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 0, 1, 1, 0, 1])
    table = class_scores(torch.eye(3)[predicted], target, ("a", "b", "c"))
    assert table["confusion"] == [[2, 1, 0], [1, 1, 0], [0, 1, 0]]
    percents = {"a": (200 / 3, 200 / 3, 200 / 3, 3), "b": (100 / 3, 50, 40, 2), "c": (0, 0, 0, 1)}
    for name, row in table["classes"].items():
        assert tuple(row.values()) == pytest.approx(percents[name])
    present = torch.tensor([[True, False], [True, True]])
    row = label_scores(torch.eye(2), present, ("x", "y"))["classes"]["x"]
    assert tuple(row.values()) == pytest.approx((100, 50, 200 / 3, 2))


def test_scores_have_no_errors_of_their_computation():
    scores = {"a": 100 * 0.545, "b": [1, 0.1 + 0.2, "c"], "d": {"e": float("inf")}}
    assert round_scores(scores) == {"a": 54.5, "b": [1, 0.3, "c"], "d": {"e": float("inf")}}


def test_predictions_are_written(reviews, tmp_path, capsys):
    out = tmp_path / "answers.jsonl"
    table = printed(capsys, "evaluate", reviews, "--predictions", out)
    assert "confusion matrix" in table
    assert "precision" in table
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [line["input"] for line in lines] == [*range(1, 10)]
    assert {line["reference"] for line in lines} == {"good", "bad", "odd"}
    labels = load(reviews).predict([line["source"] for line in lines])
    assert [line["label"] for line in lines] == labels
    message = failure(capsys, "evaluate", reviews, "--predictions", out)
    assert "exists; it is replaced only with --force" in message


def test_long_texts_are_bad_inputs_and_are_cut_and_counted_in_evaluation(reviews, tmp_path, capsys):
    long = "dull " * 511 + "lovely lovely"
    rows = write_rows(tmp_path / "long.tsv", f"{long}\tbad", "it was great\tgood")
    lines = write_rows(tmp_path / "lines.txt", long, "it was great")
    for name in ("predict", "look"):
        assert "input 1 has 513 words, more than 512" in failure(capsys, name, reviews, long)
    assert printed(capsys, "predict", reviews, lines, "--on-bad", "skip") == "\ngood\n"
    command("predict", reviews, lines, "--on-bad", "truncate", "--json")
    out, err = capsys.readouterr()
    assert "truncated: input 1" in err
    answers = [json.loads(line) for line in out.splitlines()]
    assert answers[0]["source"] == "dull " * 511 + "lovely"
    written = tmp_path / "answers.jsonl"
    command("evaluate", reviews, "--data.test", rows, "--predictions", written)
    assert "long.tsv: texts longer than --data.max-length 512 words" in capsys.readouterr().err
    for line, answer in zip(written.read_text().splitlines(), answers, strict=True):
        assert json.loads(line)["labels"] == answer["labels"]
