"""Classes, labels and numbers: parsing, metrics, and runs of each from texts and images."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data.config import ImagesConfig, LabeledConfig, OnBad
from regard.errors import UserError
from regard.look.maps import GRADIENT
from regard.models.config import TextClassifierConfig
from regard.recipes.load import load
from regard.recipes.metrics.vectors import average_precision, label_scores, number_scores
from regard.recipes.targets.base import RawTargets, Target
from regard.recipes.targets.labels import ClassTarget, LabelsTarget
from regard.recipes.targets.numbers import NumberTarget, Scales
from tests.recipes.capture_checks import answer_log_probs, check_capture, check_gradients
from tests.recipes.commands import command, failure, printed, report

SMALL = (
    "--model.core transformer --model.core.width 16 --model.core.layers 1 --model.dropout 0 "
    "--model.core.feedforward 16 --train.warmup 5 --train.lr 1e-2 --train.validate-every 40 "
    "--train.precision float32 --train.tensorboard false --train.label-smoothing 0 --seed 2"
)
DATA = LabeledConfig()


def raw_targets(*texts: str, on_bad: OnBad = "error") -> RawTargets:
    return RawTargets(texts, lambda i: f"a.tsv, line {i + 1}", "a.tsv", ("label", "text"), on_bad)


def save(target: Target, folder: Path) -> None:
    for name, artifact in target.artifacts().items():
        artifact.save(folder / name)


def test_labels_of_two_unicode_spellings_are_one():
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    texts = composed, f"b,{decomposed}", json.dumps([decomposed])
    target = LabelsTarget.fit(raw_targets(*texts), DATA)
    assert target.names == ("b", composed)
    assert target.encode(raw_targets(*texts))[1].tolist() == [[0, 1], [1, 1], [0, 1]]


def test_labels_are_listed_in_json_or_between_separators():
    target = LabelsTarget.fit(raw_targets("b,a", '["c", 10]', "", "a"), DATA)
    assert target.names == ("10", "a", "b", "c")
    keep, rows = target.encode(raw_targets("c, b", "[]"))
    assert keep == [0, 1]
    assert rows.tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]
    bars = LabelsTarget.fit(raw_targets("x, y|z"), LabeledConfig(separator="|"))
    assert bars.names == ("x, y", "z")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,q", "line 2: label 'q' does not occur in the training texts \\(a, b\\)"),
        ('["a"', "line 2: expected a list of strings or numbers"),
        ('[["a"]]', "line 2: expected a list of strings or numbers"),
    ],
)
def test_malformed_labels_are_named_with_their_line_or_left_out(text, message):
    target = LabelsTarget.fit(raw_targets("a", "b"), DATA)
    with pytest.raises(UserError, match=rf"a.tsv, {message.replace('[', '.')}"):
        target.encode(raw_targets("a", text))
    assert target.encode(raw_targets("a", text, on_bad="skip"))[0] == [0]
    with pytest.raises(UserError, match="no text has a label that can be used"):
        target.encode(raw_targets(text, on_bad="skip"))


@pytest.mark.parametrize(
    "text", ["", "three", "nan", "1e999", "1e16", f"[{10**400}]", "1,2", "[1, null]", "[true]"]
)
def test_malformed_numbers_are_named_with_their_line_or_left_out(text):
    target = NumberTarget.fit(raw_targets("1", "2.5"), DATA)
    with pytest.raises(UserError, match=r"a.tsv, line 3: expected a .*got"):
        target.encode(raw_targets("1", "2", text))
    assert target.encode(raw_targets("1", "2", text, on_bad="skip"))[0] == [0, 1]
    with pytest.raises(UserError, match=r"a.tsv, line 2: expected a"):
        NumberTarget.fit(raw_targets("1", text, "3"), DATA)


def test_count_of_numbers_is_that_of_the_first_and_they_must_vary(tmp_path):
    target = NumberTarget.fit(raw_targets("1,10", "[3, 30]"), DATA)
    assert target.scales == Scales((2, 20), (1, 10))
    with pytest.raises(UserError, match="line 1: expected 2 numbers"):
        target.encode(raw_targets("5"))
    # The second pairs are apart for float64 alone.
    for texts in (("1,4", "2,4"), ("0", "1e-320"), ("1000000000", "1000000001"), ("0", "1e-20")):
        with pytest.raises(UserError, match=r"a.tsv: a number is the same everywhere"):
            NumberTarget.fit(raw_targets(*texts), DATA)
    save(target, tmp_path)
    assert NumberTarget.load(tmp_path, DATA).scales == target.scales


@pytest.mark.parametrize(
    ("kind", "texts", "key", "references"),
    [
        (ClassTarget, ["good", "bad"], "label", ["good", "bad"]),
        (LabelsTarget, ["b,a", ""], "predicted", [["a", "b"], []]),
        (NumberTarget, ["2.69", "4"], "values", [{"value": 2.69}, {"value": 4.0}]),
        (
            NumberTarget,
            ["2.69,1", "-4,1e6"],
            "values",
            [{"value 1": 2.69, "value 2": 1.0}, {"value 1": -4.0, "value 2": 1e6}],
        ),
    ],
)
def test_references_are_predictions_without_an_error(kind, texts, key, references):
    target = kind.fit(raw_targets(*texts), DATA)
    rows = torch.from_numpy(target.encode(raw_targets(*texts))[1])
    assert [target.reference(row.numpy()) for row in rows] == references
    exact = torch.nn.functional.one_hot(rows).float() if kind is ClassTarget else rows
    answers = [target.answer(row).json[key] for row in exact]
    if kind is NumberTarget:
        references = [pytest.approx(reference) for reference in references]
    assert answers == references


def test_scores_of_each_of_several_numbers_by_hand():
    target = NumberTarget.fit(raw_targets("1,10", "3,30"), DATA)
    outputs = torch.tensor([[1.0, 10.0], [2.0, 30.0]])
    scores = target.metrics(outputs, torch.tensor([[1.0, 10.0], [3.0, 30.0]]))
    assert scores["mae"] == 0.25
    assert [scores["numbers"][name]["mae"] for name in ("value 1", "value 2")] == [0.5, 0.0]


def test_label_scores_by_hand():
    probabilities = torch.tensor([[0.9, 0.2, 0.1], [0.6, 0.7, 0.1], [0.3, 0.6, 0.2]])
    targets = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 1, 0]])
    scores = label_scores(probabilities, targets, ("a", "b", "c"))
    # Label 0: a true positive, a false positive, a false negative. Label 1: two true positives.
    # Label 2: none.
    assert scores["micro_f1"] == pytest.approx(100 * 6 / 8)
    assert scores["macro_f1"] == pytest.approx(100 * (1 / 2 + 1) / 2)
    assert scores["exact_match"] == pytest.approx(100 / 3)
    # Label 0 by rank: relevant, not, relevant: (1/1 + 2/3) / 2. Label 1: relevant, relevant: 1.
    assert scores["average_precision"] == pytest.approx(100 * (5 / 6 + 1) / 2)
    likelihood = [0.9 * 0.8 * 0.9, 0.4 * 0.7 * 0.9, 0.3 * 0.6 * 0.8]
    assert scores["nll"] == pytest.approx(-sum(map(math.log, likelihood)) / 3, abs=1e-6)
    nothing = label_scores(probabilities, torch.zeros(3, 3), ("a", "b", "c"))
    assert scores.keys() - nothing.keys() == {"average_precision"}


def test_equal_scores_are_one_threshold():
    for targets in ([True, False, False, True], [False, True, True, False]):
        assert average_precision(torch.tensor([0.5] * 4), torch.tensor(targets)) == pytest.approx(
            50
        )


def test_number_scores_by_hand():
    scores = number_scores(torch.tensor([[1.0], [2], [6]]), torch.tensor([[1.0], [3], [5]]))
    assert scores == pytest.approx({"mae": 2 / 3, "rmse": math.sqrt(2 / 3), "r2": 1 - 2 / 8})
    assert "r2" not in number_scores(torch.tensor([[1.0], [2]]), torch.tensor([[3.0], [3]]))


@pytest.fixture(scope="module")
def label_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on texts of fruits, labeled with the color of each fruit that occurs."""
    folder = tmp_path_factory.mktemp("labels")
    fruits = {"lime": "green", "cherry": "red", "plum": "blue"}
    words = f"train reviews {SMALL} --data.target labels --data.separator | --word-dropout 0"
    words += f" --tokenizer.min-count 1 --train.steps 120 --run {folder / 'run'}"
    for name, number in (("train", 40), ("val", 10), ("test", 10)):
        rows = []
        for i in range(number):
            found = [word for bit, word in enumerate(fruits) if (i >> bit) % 2]
            colors = "|".join(fruits[word] for word in found)
            rows.append(f"a bowl of {' and '.join(found)} .\t{colors}\n")
        (folder / f"{name}.tsv").write_text("".join(rows), encoding="utf-8")
        words += f" --data.{name} {folder / name}.tsv"
    command(words)
    return folder / "run"


def test_labels_of_texts_are_learned_predicted_and_drawn(label_run, capsys, tmp_path):
    test = report(label_run)
    assert test["signature"] == "3 labels: blue, green, red"
    assert test["micro_f1"] > 95
    trained = load(label_run)
    empty, lime, text = "a bowl of  .", "a bowl of lime .", "a bowl of plum and cherry ."
    assert trained.predict([text, empty]) == [("blue", "red"), ()]
    both = printed(capsys, "predict", label_run, "a bowl of lime and cherry .")
    assert both == "green|red\n"
    assert (
        printed(capsys, "predict", label_run, lime, "--n-best", "2")
        .splitlines()[0]
        .endswith("\tgreen")
    )
    (maps,) = check_capture(trained, [lime])
    assert maps.sample.axes["queries"].labels == ("green",)
    check_gradients(trained, [lime, text])
    probabilities = {label.text: label.score for label in trained.predict([text], n_best=3)[0]}
    expected = math.log(probabilities["red"]) + math.log(probabilities["blue"])
    assert answer_log_probs(trained, [text])[0]().item() == pytest.approx(expected, abs=1e-5)
    with pytest.raises(UserError, match="no label is predicted"):
        trained.look([empty], gradients=True)
    with_labels, without_labels = trained.look([lime, empty], gradients=True)
    assert with_labels.find(measure=GRADIENT)
    assert without_labels.find()
    assert not without_labels.find(measure=GRADIENT)


@pytest.fixture(scope="module")
def number_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on images of a bright bar, labeled with its position and length."""
    folder, draw = tmp_path_factory.mktemp("numbers"), np.random.default_rng(1)
    (folder / "pictures").mkdir()
    words = f"train images {SMALL} --data.target number --augment none --batch 20 --train.steps 160"
    words += f" --model.regression-loss absolute --run {folder / 'run'}"
    for name, number in (("train", 60), ("val", 10), ("test", 20)):
        rows = ["file,label\n"]
        for i in range(number):
            pixels = np.zeros((8, 8), np.uint8)
            position, length = int(draw.integers(8)), int(draw.integers(1, 9))
            pixels[position, :length] = 255
            Image.fromarray(pixels).save(folder / "pictures" / f"{name}{i}.png")
            rows.append(f'pictures/{name}{i}.png,"{100 + position}, {length / 10}"\n')
        (folder / f"{name}.csv").write_text("".join(rows), encoding="utf-8")
        words += f" --data.{name} {folder / name}.csv"
    command(words)
    return folder


def test_numbers_of_images_are_learned_in_their_own_units(number_folder, capsys):
    run, test = number_folder / "run", report(number_folder / "run")
    assert test["examples"] == 20
    assert test["r2"] > 0.5  # the mean of the training numbers has at most 0
    picture = number_folder / "pictures" / "test0.png"
    ((position, length),) = load(run).predict([picture])
    assert 95 < position < 112
    assert -0.3 < length < 1.2
    numbers = [float(part) for part in printed(capsys, "predict", run, picture).split(",")]
    assert numbers == pytest.approx([position, length], rel=1e-3)
    message = failure(capsys, "predict", run, picture, "--n-best", "2")
    assert "--n-best must be 1 for a run that predicts numbers, got 2" in message
    (maps,) = check_capture(load(run), [picture])
    assert maps.sample.title.startswith("test0.png -> ")
    page = number_folder / "a.html"
    message = failure(capsys, "look", run, picture, "--gradients", "--out", page)
    assert "this run predicts numbers, which have no probability" in message
    assert not page.exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("pictures/test0.png", "line 3: expected 2 cells"),
        ("pictures/none.png,1", "line 3.*none.png"),
        ("pictures/test0.png,1", "line 3.*expected 2 numbers.*got '1'"),
        ('pictures/test0.png,"nan,1"', "line 3: expected a number, got 'nan'"),
    ],
)
def test_bad_lines_of_a_list_are_named_or_left_out(number_folder, line, message):
    path = number_folder / "bad.csv"
    path.write_text(f'file,label\npictures/test1.png,"1,2"\n{line}\n', encoding="utf-8")
    messages: list[str] = []
    others: list[str] = []
    run = load(number_folder / "run", notify=messages.append)
    with pytest.raises(UserError, match=rf"bad.csv, {message}"):
        run.evaluate(path)
    assert run.evaluate(path, on_bad="skip")["examples"] == 1
    assert run.evaluate(path, on_bad="skip", notify=others.append)["examples"] == 1
    assert len(messages) == 1
    assert others == messages


@pytest.mark.parametrize(
    ("target", "names"),
    [("class", {"accuracy"}), ("labels", {"micro_f1", "exact_match"}), ("number", {"mae", "r2"})],
)
def test_synthetic_reviews_have_every_target(target, names, tmp_path):
    small = "--model.core.width 8 --model.core.hidden 8 --train.steps 2 --train.validate-every 2"
    words = f"train reviews {small} --train.tensorboard false --data.target {target} --run"
    command(words, tmp_path / "run")
    test = report(tmp_path / "run")
    assert names <= test.keys()
    assert test["data"] == "synthetic reviews, test"


@pytest.mark.parametrize("kind", [LabeledConfig, ImagesConfig])
def test_balanced_classes_have_equal_weight_in_the_loss(kind: type[Any], tmp_path: Path) -> None:
    data = kind(class_weights="balanced")
    target = ClassTarget.fit(raw_targets("a", "b", "a", "a", "c", "a"), data)
    assert target.class_weights == (6 / (3 * 4), 6 / 3, 6 / 3)
    save(target, tmp_path)
    target = ClassTarget.load(tmp_path, data)
    writer = target.build_writer(
        4, TextClassifierConfig(dropout=0.0), pool=torch.nn.Identity(), label_smoothing=0.1
    )
    hidden, classes = torch.randn(3, 4), torch.tensor([0, 2, 0])
    log_p = writer.scores(hidden).log_softmax(-1)
    rows = [0.9 * -log_p[i, c] - 0.1 * log_p[i].mean() for i, c in enumerate(classes.tolist())]
    loss = writer.loss(hidden, classes)
    torch.testing.assert_close(loss.total, 0.5 * rows[0] + 2 * rows[1] + 0.5 * rows[2])
    nll = -(log_p[0, 0] + log_p[1, 2] + log_p[2, 0])
    torch.testing.assert_close(loss.nll, nll)
    torch.testing.assert_close(writer.eval().loss(hidden, classes).total, nll)
    assert target.metric == "macro_f1"
    other = ClassTarget.fit(raw_targets("a", "b"), kind())
    assert (other.metric, other.class_weights) == ("accuracy", ())
    with pytest.raises(UserError, match="`class_weights` must be none for `target` labels"):
        kind(class_weights="balanced", target="labels")


def test_the_run_uses_the_class_weights_with_and_without_naive_bayes(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("fine\tgood\ngrand\tgood\nnice\tgood\ndull\tbad\n")
    words = (
        f"train reviews --data.train {path} --data.val {path} --data.class-weights balanced "
        "--train.steps 1 --train.validate-every 1 --train.tensorboard false --model.core.width 4 "
        "--model.core.hidden 4 --tokenizer.min-count 1 --naive-bayes"
    )
    for kind in ("none", "words"):
        command(words, kind, "--run", tmp_path / kind)
        trained = load(tmp_path / kind)
        assert trained.recipe.metric == "macro_f1"
        assert trained.model.writer.class_weights == (4 / 2, 4 / 6)
