"""Runs of `reviews` and `images`: training, use from Python and from the command line, metrics."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from regard.cli.main import main
from regard.data.config import LabeledConfig
from regard.data.text.labels import Labels
from regard.errors import UserError
from regard.models.readers.images import ImageReader
from regard.recipes.base.pictures import patch_axis
from regard.recipes.load import load
from regard.recipes.metrics.report import round_scores
from regard.recipes.metrics.vectors import class_scores, label_scores
from regard.recipes.targets.labels import ClassTarget
from tests.helpers import close
from tests.recipes.capture_checks import (
    answer_log_probs,
    check_capture,
    check_gradients,
    check_test_input,
    outputs_of,
)

WORDS = {
    "good": ["great", "fine", "lovely"],
    "bad": ["awful", "dull", "grim"],
    "odd": ["strange", "queer", "weird"],
}


def make_rows(number: int) -> list[str]:
    return [
        f"{json.dumps({'text': f'it was {WORDS[kind][i % 3]} {i % 5}', 'label': kind})}\n"
        for i in range(number)
        for kind in WORDS
    ]


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reviews")
    for name, number in (("train", 12), ("val", 3), ("test", 3)):
        (folder / f"{name}.jsonl").write_text("".join(make_rows(number)), encoding="utf-8")
    files = " ".join(f"--data.{name} {folder / name}.jsonl" for name in ("train", "val", "test"))
    small = (
        "--model.core transformer --model.core.width 16 --model.core.layers 1 "
        "--model.core.feedforward 16 "
        "--model.dropout 0 --word-dropout 0.1"
    )
    limits = (
        "--train.steps 60 --train.warmup 5 --train.lr 5e-3 --train.validate-every "
        "20 --train.tensorboard false"
    )
    options = f"{files} {small} {limits} --tokenizer.min-count 1"
    assert main(f"train reviews --run {folder / 'run'} {options}".split()) == 0
    return folder / "run"


def test_label_of_test_data_that_is_unknown_is_reported_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, labels in (
        ("train", ("good", "bad")),
        ("val", ("good", "bad")),
        ("test", ("good", "nice")),
    ):
        (tmp_path / f"{name}.tsv").write_text(
            "".join(f"a {label} film\t{label}\n" for label in 4 * labels)
        )
    files = " ".join(f"--data.{name} {tmp_path / name}.tsv" for name in ("train", "val", "test"))
    assert (
        main(f"train reviews --run {tmp_path / 'run'} {files} --tokenizer.min-count 1".split()) == 2
    )
    error = capsys.readouterr().err
    assert (
        "test.tsv, line 2: label 'nice' does not occur in the training texts (bad, good)" in error
    )
    assert "step" not in error


def check_contributions(
    run: Any, given: Any, scores: Sequence[float], names: Sequence[str]
) -> None:
    """Check that the contributions sum to these scores of these names, the best first."""
    (contributions,) = run.look([given])[0].find(measure="contribution")
    assert contributions.heads == tuple(names)
    close(contributions.weights[:, 0].sum(-1), torch.tensor(scores, dtype=torch.float32))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Horizontal and vertical bars, as files in a folder per class."""
    folder, draw = tmp_path_factory.mktemp("images"), np.random.default_rng(1)
    for split, number in (("train", 24), ("test", 6)):
        for kind in ("lying", "standing"):
            (folder / split / kind).mkdir(parents=True)
            for i in range(number):
                pixels = draw.integers(0, 40, (8, 8)).astype(np.uint8)
                position = int(draw.integers(1, 7))
                pixels[(position, slice(None)) if kind == "lying" else (slice(None), position)] = (
                    255
                )
                Image.fromarray(pixels).save(folder / split / kind / f"{i}.png")
    small = (
        "--model.core.width 24 --model.core.layers 1 --model.core.feedforward "
        "24 --augment none --batch 16"
    )
    limits = (
        "--train.steps 60 --train.warmup 5 --train.lr 5e-3 --train.validate-every "
        "30 --train.tensorboard false"
    )
    data = f"--data.train {folder / 'train'} --data.test {folder / 'test'} --data.val-share 0.2"
    assert main(f"train images --run {folder / 'run'} {data} {small} {limits}".split()) == 0
    return folder


def test_reviews_learn_and_report(reviews):
    report = json.loads((reviews / "report.json").read_text())
    assert report["test"]["examples"] == 9
    assert report["test"]["accuracy"] == 100
    assert {"accuracy", "macro_f1", "nll"} <= set(report["validation"])
    assert report["test"]["signature"] == "3 classes: bad, good, odd"


def test_reviews_answer_from_python(reviews):
    trained = load(reviews)
    assert trained.predict(["it was grim", "it was lovely"]) == ["bad", "good"]
    ((best, second, third),) = trained.predict(["it was weird"], n_best=9)
    assert best.text == "odd"
    assert best.score > second.score > third.score
    assert best.score + second.score + third.score == pytest.approx(1, abs=1e-5)
    with pytest.raises(UserError, match="input 2 is empty: it has no words to classify"):
        trained.predict(["it was fine", " "])
    with pytest.raises(TypeError, match="must be a list, got str"):
        trained.predict("it was fine")


def test_empty_texts_are_bad_inputs(reviews, capsys, tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("it was dull\n\n  \nit was great\n", encoding="utf-8")
    assert main(["predict", str(reviews), str(lines)]) == 2
    out, err = capsys.readouterr()
    assert out == "bad\n"
    assert "input 2 is empty: it has no words to classify" in err
    assert main(["predict", str(reviews), str(lines), "--on-bad", "skip"]) == 0
    out, err = capsys.readouterr()
    assert out == "bad\n\n\ngood\n"
    assert "lines.txt, line 3: input 3 is empty" in err
    assert "skipped 2 of 4 inputs" in err


def test_reviews_answer_on_the_command_line(reviews, capsys, tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("it was dull\nit was great\n", encoding="utf-8")
    assert main(["predict", str(reviews), str(lines)]) == 0
    assert capsys.readouterr().out == "bad\ngood\n"
    assert main(["predict", str(reviews), "it was queer", "--n-best", "2"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows] == [["1", "1"], ["1", "2"]]
    assert rows[0][3] == "odd"


def test_other_texts_are_scored_and_unknown_labels_named(reviews, capsys, tmp_path):
    other = tmp_path / "other.tsv"
    other.write_text("it was dull\tbad\nit was great\tnice\n", encoding="utf-8")
    assert main(["evaluate", str(reviews), "--data.test", str(other)]) == 2
    assert (
        "other.tsv, line 2: label 'nice' does not occur in the training texts (bad, good, odd)"
        in capsys.readouterr().err
    )
    options = f"--data.test {other} --data.on-bad skip --json"
    assert main(f"evaluate {reviews} {options}".split()) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 100


def test_look_with_a_self_attentive_core_shows_chains(reviews, tmp_path):
    files = " ".join(
        f"--data.{name} {reviews.parent / name}.jsonl" for name in ("train", "val", "test")
    )
    small = (
        "--model.core self-attentive --model.core.width 16 "
        "--model.core.hidden 16 --model.core.cell rnn"
    )
    limits = (
        "--train.steps 2 --train.validate-every 2 --train.tensorboard false --tokenizer.min-count 1"
    )
    assert main(f"train reviews --run {tmp_path / 'run'} {files} {small} {limits}".split()) == 0
    (sample_maps,) = check_capture(load(tmp_path / "run"), ["it was awful"])
    chains = sample_maps.find("chain")
    assert {attention_map.direction for attention_map in chains} == {"forward", "backward"}
    labels = {
        attention_map.direction: sample_maps.keys(attention_map).labels for attention_map in chains
    }
    assert labels == {"forward": ("it", "was", "awful"), "backward": ("awful", "was", "it")}
    assert sample_maps.sample.title.startswith("it was awful -> ")
    for attention_map in chains:
        torch.testing.assert_close(attention_map.weights.sum(-1), torch.ones(1, 3))
    (pooling,) = sample_maps.find("pooling")
    assert sample_maps.keys(pooling).labels == ("it", "was", "awful")
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
    with pytest.raises(UserError, match="input 2 is empty"):
        trained.look(["it was awful", " "])
    with pytest.raises(UserError, match="is empty"):
        trained.look([])
    with pytest.raises(TypeError, match="must be a list"):
        trained.look("it was awful")


def test_gradients_are_those_of_the_predicted_class(reviews, pictures):
    trained = load(reviews)
    check_gradients(trained, ["it was awful", " it was a lovely fine one "])
    check_best_log_probs(trained, ["it was awful", "it was a lovely fine one"])
    trained = load(pictures / "run")
    paths = [pictures / "test" / kind / "0.png" for kind in ("lying", "standing")]
    check_gradients(trained, paths)
    check_best_log_probs(trained, paths)


def check_best_log_probs(trained: Any, inputs: Sequence[Any]) -> None:
    for given in inputs:
        ((best,),) = trained.predict([given], n_best=1)
        log_p = answer_log_probs(trained, [given])[0]().item()
        assert log_p == pytest.approx(np.log(best.score), abs=1e-5)


def test_images_learn_and_answer(pictures, capsys):
    report = json.loads((pictures / "run" / "report.json").read_text())
    assert report["test"]["examples"] == 12
    assert report["test"]["accuracy"] >= 90
    standing = str(pictures / "test" / "standing" / "0.png")
    assert load(pictures / "run").predict([standing]) == ["standing"]
    assert main(["predict", str(pictures / "run"), standing]) == 0
    assert capsys.readouterr().out == "standing\n"
    lying = str(pictures / "test" / "lying" / "0.png")
    assert main(["predict", str(pictures / "run"), standing, lying]) == 0
    labels = load(pictures / "run").predict([standing, lying])
    assert capsys.readouterr().out.splitlines() == [
        f"{standing}\t{labels[0]}",
        f"{lying}\t{labels[1]}",
    ]
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(standing) as image:
        image.transpose(Image.Transpose.ROTATE_90).save(pictures / "turned.png", exif=exif)
    assert load(pictures / "run").predict([pictures / "turned.png"]) == ["standing"]
    (pictures / "train" / "standing" / "a.heic").write_bytes(b"x")
    test = f"--data.test {pictures / 'train'} --json"
    assert main(f"evaluate {pictures / 'run'} {test}".split()) == 0
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
    for sample_maps in (of_file, of_pixels):
        assert np.array_equal(sample_maps.sample.pictures["image"].pixels, pixels)
        (pooled,) = sample_maps.find("pooling")
        assert pooled.weights.shape == (4, 1, 4)
        assert sample_maps.queries(pooled).labels == ("standing",)
        assert sample_maps.keys(pooled).places == (
            (0, 0, 0.5, 0.5),
            (0.5, 0, 0.5, 0.5),
            (0, 0.5, 0.5, 0.5),
            (0.5, 0.5, 0.5, 0.5),
        )
    test_input = check_test_input(trained)
    assert test_input.size == (8, 8)
    assert trained.look([test_input], names=["test image 0"])[0].sample.title.startswith(
        "test image 0 -> "
    )


def test_the_class_token_is_an_item_before_the_patches(pictures, tmp_path):
    small = (
        "--model.core.width 24 --model.core.layers 1 --model.core.feedforward "
        "24 --augment none --batch 16"
    )
    limits = (
        "--train.steps 40 --train.warmup 5 --train.lr 5e-3 --train.validate-every "
        "40 --train.tensorboard false"
    )
    data = f"--data.train {pictures / 'train'} --data.test {pictures / 'test'} --data.val-share 0.2"
    options = f"--model.pool first {data} {small} {limits}"
    assert main(f"train images --run {tmp_path / 'run'} {options}".split()) == 0
    trained, path = load(tmp_path / "run"), str(pictures / "test" / "standing" / "0.png")
    (sample_maps,) = check_capture(trained, [path])
    assert sample_maps.find("pooling") == ()
    (attention_map,) = sample_maps.find("encoder self")
    keys = sample_maps.keys(attention_map)
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
        forms += [pixels.transpose(2, 0, 1)] if shape == (12, 20, 3) else []
        rows = [trained.recipe.preprocess(trained._read_input(form, 1), 1)[0] for form in forms]
        assert {row.shape for row in rows} == {trained.recipe.shape}
        assert all(np.array_equal(row, rows[0]) for row in rows)
    test_input = trained.test_input(0)
    expected = trained.recipe.load("test").data.pixels[0]
    assert np.array_equal(trained.recipe.preprocess(test_input, 1)[0], expected)


def test_test_images_of_another_size_are_resized_as_inputs_are(pictures, tmp_path):
    trained, name = load(pictures / "run"), "standing"
    (tmp_path / "test" / name).mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 20), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "test" / name / "a.png")
    Image.fromarray(pixels[:8, :8]).save(tmp_path / "test" / name / "b.png")
    examples = trained.recipe.change({"test": str(tmp_path / "test")}, for_test=True).load("test")
    assert np.array_equal(
        examples.data.pixels,
        [trained.recipe.preprocess(one, 1)[0] for one in (Image.fromarray(pixels), pixels[:8, :8])],
    )


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
    with pytest.raises(
        UserError, match=r"a.png: class 'crooked' does not occur in the training images"
    ):
        trained.evaluate(tmp_path)


def test_scores_by_hand():
    probabilities = torch.tensor([[0.9, 0.1, 0], [0.2, 0.8, 0], [0.6, 0.4, 0], [0.1, 0.7, 0.2]])
    scores = class_scores(probabilities, torch.tensor([0, 1, 1, 1]), ("a", "b", "c"))
    assert scores["accuracy"] == 75
    assert scores["macro_f1"] == pytest.approx(100 * (2 / 3 + 4 / 5) / 2)
    assert scores["nll"] == pytest.approx(-np.log([0.9, 0.8, 0.4, 0.7]).mean(), abs=1e-6)
    ranked = ClassTarget(Labels(("a", "b", "c")), LabeledConfig()).rank(probabilities[3], 2)
    assert [answer.text for answer in ranked] == ["b", "c"]


def test_run_without_data_uses_synthetic_reviews(tmp_path):
    options = (
        "--train.steps 2 --train.validate-every 2 --train.tensorboard false "
        "--model.core.width 8 --model.core.hidden 8"
    )
    assert main(f"train reviews --run {tmp_path / 'run'} {options}".split()) == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["test"]["data"] == "synthetic reviews, test"


def test_skipped_lines_are_reported_on_stderr(reviews, capsys, tmp_path):
    other = tmp_path / "other.jsonl"
    rows = [{"text": "it was dull", "label": "bad"}, {"text": "", "label": "bad"}]
    other.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = f"--data.test {other} --data.on-bad skip --json"
    assert main(f"evaluate {reviews} {options}".split()) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["examples"] == 1
    assert "skipped 1 of the texts; first: " in captured.err


def test_contributions_sum_to_the_scores_of_the_answer(
    reviews: Path, pictures: Path, tmp_path: Path
) -> None:
    run = load(reviews)
    p = outputs_of(run, ["it was lovely 3"])[0].double().log()
    order = p.argsort(descending=True).tolist()
    names = [run.recipe.target.names[i] for i in order]
    check_contributions(
        run, "it was lovely 3", [float(p[i] - (p.sum() - p[i]) / 2) for i in order], names
    )
    photos = load(pictures / "run")
    photo = sorted((pictures / "test").rglob("*.png"))[0]
    (output,) = outputs_of(photos, [photo])
    odds = float(output.max().logit())
    names = [one.text for one in photos.recipe.target.rank(output, 2)]
    check_contributions(photos, photo, [odds, -odds], names)
    view = f"--view contributions --out {tmp_path / 'why.svg'}"
    assert main(f"look {reviews} lovely {view}".split()) == 0
    assert "bias" in (tmp_path / "why.svg").read_text(encoding="utf-8")


def test_without_terms_a_note_says_that_contributions_are_not_shown(reviews: Path) -> None:
    notes: list[str] = []
    run = load(reviews, notify=notes.append)
    run.model.writer.norm = torch.nn.Identity()
    assert not run.look(["a lovely film"])[0].find(measure="contribution")
    reason = "the output layer is not a LayerNorm and a Linear"
    assert notes == [f"contributions to the scores are not shown: {reason}"]


def test_classes_are_counted() -> None:
    target, predicted = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 0, 1, 1, 0, 1])
    table = class_scores(torch.eye(3)[predicted], target, ("a", "b", "c"))
    assert table["confusion"] == [[2, 1, 0], [1, 1, 0], [0, 1, 0]]
    percent = {
        name: {key: round(value, 1) for key, value in row.items()}
        for name, row in table["classes"].items()
    }
    assert percent == {
        "a": {"precision": 66.7, "recall": 66.7, "f1": 66.7, "examples": 3},
        "b": {"precision": 33.3, "recall": 50.0, "f1": 40.0, "examples": 2},
        "c": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "examples": 1},
    }
    present = torch.tensor([[True, False], [True, True]])
    rows = label_scores(torch.eye(2), present, ("x", "y"))["classes"]
    assert rows["x"] == {
        "precision": 100,
        "recall": 50,
        "f1": pytest.approx(200 / 3),
        "examples": 2,
    }


def test_scores_have_no_errors_of_their_computation():
    assert round_scores({"a": 100 * 0.545, "b": [1, 0.1 + 0.2, "c"], "d": {"e": float("inf")}}) == (
        {"a": 54.5, "b": [1, 0.3, "c"], "d": {"e": float("inf")}}
    )


def test_words_unknown_to_a_model_are_shown_and_counted_as_words(reviews):
    trained = load(reviews)
    (sample,) = trained.look(["it was xyzzy"])
    assert sample.sample.axes["source"].labels[-1] == "<unk:xyzzy>"
    assert trained.recipe.describe().partition(";")[0] == f"{len(trained.recipe.tokenizer)} words"


def test_predictions_are_written(
    reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "answers.jsonl"
    assert main(f"evaluate {reviews} --predictions {out}".split()) == 0
    table = capsys.readouterr().out
    assert "confusion matrix" in table
    assert "precision" in table
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [line["input"] for line in lines] == [*range(1, 10)]
    assert {line["reference"] for line in lines} == {"good", "bad", "odd"}
    assert [line["label"] for line in lines] == load(reviews).predict(
        [line["source"] for line in lines]
    )
    assert main(f"evaluate {reviews} --predictions {out}".split()) == 2
    assert "exists; it is replaced only with --force" in capsys.readouterr().err


def test_long_texts_are_bad_inputs_and_are_cut_and_counted_in_evaluation(
    reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "dull " * 511 + "lovely lovely"
    (tmp_path / "long.tsv").write_text(f"{long}\tbad\nit was great\tgood\n", encoding="utf-8")
    (tmp_path / "lines.txt").write_text(f"{long}\nit was great\n", encoding="utf-8")
    assert main(["predict", str(reviews), long]) == 2
    assert "input 1 has 513 words, more than 512" in capsys.readouterr().err
    assert main(["look", str(reviews), long]) == 2
    assert "input 1 has 513 words, more than" in capsys.readouterr().err
    assert main(["predict", str(reviews), str(tmp_path / "lines.txt"), "--on-bad", "skip"]) == 0
    assert capsys.readouterr().out == "\ngood\n"
    assert (
        main(
            ["predict", str(reviews), str(tmp_path / "lines.txt"), "--on-bad", "truncate", "--json"]
        )
        == 0
    )
    out, err = capsys.readouterr()
    assert "truncated: input 1" in err
    answers = [json.loads(line) for line in out.splitlines()]
    assert answers[0]["source"] == "dull " * 511 + "lovely"
    files = {"--data.test": tmp_path / "long.tsv", "--predictions": tmp_path / "answers.jsonl"}
    assert (
        main(["evaluate", str(reviews), *(str(word) for pair in files.items() for word in pair)])
        == 0
    )
    assert (
        "long.tsv: texts longer than --data.max-length 512 words are cut there"
        in capsys.readouterr().err
    )
    lines = (tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["labels"] for line in lines] == [
        answer["labels"] for answer in answers
    ]
