"""Classes, labels and numbers: parsing, metrics, and runs of each from texts and images."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regard.cli.main import main
from regard.data.config import LabeledConfig, OnBad
from regard.errors import UserError
from regard.look.maps import GRADIENT
from regard.recipes.load import load
from regard.recipes.metrics.vectors import average_precision, label_scores, number_scores
from regard.recipes.targets.base import RawTargets
from regard.recipes.targets.labels import LabelsTarget
from regard.recipes.targets.numbers import NumberTarget
from tests.recipes.looked import check_capture, check_gradients

SMALL = (
    "--model.core transformer --model.core.width 16 --model.core.layers 1 --model.core.feedforward 16 "
    "--model.dropout 0 --train.warmup 5 --train.lr 1e-2 --train.validate-every 40 --train.tensorboard false "
    "--train.label-smoothing 0 --seed 2"
)
DATA = LabeledConfig()


def raw_targets(*texts: str, on_bad: OnBad = "error") -> RawTargets:
    return RawTargets(texts, lambda i: f"a.tsv, line {i + 1}", "a.tsv", ("label", "text"), on_bad)


def test_labels_of_two_unicode_spellings_are_one():
    one, two = "caf\u00e9", "cafe\u0301"
    with pytest.warns(UserWarning, match="a.tsv: two Unicode spellings of a label"):
        target = LabelsTarget.fit(raw_targets(one, f"b,{two}", f"[{json.dumps(two)}]"), DATA)
    assert target.names == ("b", one)
    np.testing.assert_array_equal(target.encode(raw_targets(two, json.dumps([two])))[1], [[0, 1], [0, 1]])


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
        ('["a"', "line 2: a text that begins with a bracket must be a JSON list"),
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
    "text", ["", "three", "nan", "1e999", "1e16", "1_0", f"[{10**400}]", "1,2", "[1, null]", "[true]"]
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
    assert (target.means, target.deviations) == ((2, 20), (1, 10))
    with pytest.raises(UserError, match="line 1: expected 2 numbers"):
        target.encode(raw_targets("5"))
    with pytest.raises(UserError, match="number 2 of each is 4 everywhere"):
        NumberTarget.fit(raw_targets("1,4", "2,4"), DATA)
    for close in (("0", "1e-320"), ("1000000000", "1000000001"), ("0", "1e-20")):  # apart for float64 alone
        with pytest.raises(UserError, match=r"a.tsv: the number varies by only .* too little for float32"):
            NumberTarget.fit(raw_targets(*close), DATA)
    target.save(tmp_path)
    again = NumberTarget.load(tmp_path, DATA)
    assert (again.means, again.deviations) == (target.means, target.deviations)
    for damaged in ("", "[]", '{"means": [1], "deviations": [0], "version": 1}', '{"means": 1, "deviations": 1}'):
        (tmp_path / "numbers.json").write_text(damaged)
        with pytest.raises(UserError, match=r"numbers.json: damaged"):
            NumberTarget.load(tmp_path, DATA)


def test_label_scores_by_hand():
    probabilities = torch.tensor([[0.9, 0.2, 0.1], [0.6, 0.7, 0.1], [0.3, 0.6, 0.2]])
    right = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 1, 0]])
    found = label_scores(probabilities, right)
    # Label 0: one hit, one false, one missed. Label 1: two hits. Label 2: nothing to find, nothing said.
    assert found["micro_f1"] == pytest.approx(100 * 6 / 8)
    assert found["macro_f1"] == pytest.approx(100 * (1 / 2 + 1) / 2)
    assert found["exact"] == pytest.approx(100 / 3)
    # Label 0 by rank: right, wrong, right: (1/1 + 2/3) / 2. Label 1: right, right: 1.
    assert found["average_precision"] == pytest.approx(100 * (5 / 6 + 1) / 2)
    likelihood = [0.9 * 0.8 * 0.9, 0.4 * 0.7 * 0.9, 0.3 * 0.6 * 0.8]
    assert found["nll"] == pytest.approx(-sum(map(math.log, likelihood)) / 3, abs=1e-6)


def test_equal_scores_are_one_threshold():
    for there in ([True, False, False, True], [False, True, True, False]):
        assert average_precision(torch.tensor([0.5] * 4), torch.tensor(there)) == pytest.approx(50)


def test_number_scores_by_hand():
    found = number_scores(torch.tensor([[1.0], [2], [6]]), torch.tensor([[1.0], [3], [5]]))
    assert found == pytest.approx({"mae": 2 / 3, "rmse": math.sqrt(2 / 3), "r2": 1 - 2 / 8})
    assert "r2" not in number_scores(torch.tensor([[1.0], [2]]), torch.tensor([[3.0], [3]]))


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on texts of fruits, labeled with the color of each fruit that occurs."""
    folder, fruits = tmp_path_factory.mktemp("labels"), {"lime": "green", "cherry": "red", "plum": "blue"}
    for name, number in (("train", 40), ("val", 10), ("test", 10)):
        rows = []
        for i in range(number):
            words = [word for bit, word in enumerate(fruits) if (i >> bit) % 2]
            rows.append(f"a bowl of {' and '.join(words)} .\t{'|'.join(fruits[word] for word in words)}\n")
        (folder / f"{name}.tsv").write_text("".join(rows), encoding="utf-8")
    files = " ".join(f"--data.{name} {folder / name}.tsv" for name in ("train", "val", "test"))
    options = "--data.target labels --data.separator | --word-dropout 0 --tokenizer.min-count 1 --train.steps 120"
    assert main(f"train reviews --run {folder / 'run'} {files} {options} {SMALL}".split()) == 0
    return folder / "run"


def test_labels_of_texts_are_learned_predicted_and_drawn(labeled, capsys, tmp_path):
    test = json.loads((labeled / "report.json").read_text())["test"]
    assert test["signature"] == "3 labels: blue, green, red"
    assert test["micro_f1"] > 95
    trained = load(labeled)
    assert trained.predict(["a bowl of plum and cherry .", "a bowl of  ."]) == [("blue", "red"), ()]
    assert main(["predict", str(labeled), "a bowl of lime and cherry ."]) == 0
    assert capsys.readouterr().out == "green|red\n"
    assert main(["predict", str(labeled), "a bowl of lime .", "--n-best", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split("\t")[3] == "green"
    (seen,) = check_capture(trained, ["a bowl of lime ."])
    assert seen.sample.axes["queries"].labels == ("green",)
    both = "a bowl of plum and cherry ."
    _, second = check_gradients(trained, ["a bowl of lime .", both])
    likely = {one.text: one.score for one in trained.predict([both], n_best=3)[0]}
    assert trained.likelihood(both, second).item() == pytest.approx(
        math.log(likely["red"]) + math.log(likely["blue"]), abs=1e-5
    )
    with pytest.raises(UserError, match="no label is predicted for it"):
        trained.look(["a bowl of  ."], gradients=True)
    some, none = trained.look(["a bowl of lime .", "a bowl of  ."], gradients=True)
    assert some.find(measure=GRADIENT)
    assert none.find()
    assert not none.find(measure=GRADIENT)
    other = tmp_path / "other.tsv"
    other.write_text("a bowl of lime .\tgreen\na bowl of plum .\tpink|blue\n", encoding="utf-8")
    assert main(["evaluate", str(labeled), "--data.test", str(other)]) == 2
    assert "other.tsv, line 2: label 'pink' does not occur in the training texts" in capsys.readouterr().err


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on images of a bright bar, labeled with its position and length."""
    folder, draw = tmp_path_factory.mktemp("numbers"), np.random.default_rng(1)
    (folder / "pictures").mkdir()
    for name, number in (("train", 60), ("val", 10), ("test", 20)):
        rows = ["file,label\n"]
        for i in range(number):
            pixels = np.zeros((8, 8), np.uint8)
            place, length = int(draw.integers(8)), int(draw.integers(1, 9))
            pixels[place, :length] = 255
            Image.fromarray(pixels).save(folder / "pictures" / f"{name}{i}.png")
            rows.append(f'pictures/{name}{i}.png,"{100 + place}, {length / 10}"\n')
        (folder / f"{name}.csv").write_text("".join(rows), encoding="utf-8")
    files = " ".join(f"--data.{name} {folder / name}.csv" for name in ("train", "val", "test"))
    options = "--data.target number --augment none --batch 20 --train.steps 160 --model.number-error absolute"
    assert main(f"train images --run {folder / 'run'} {files} {options} {SMALL}".split()) == 0
    return folder


def test_numbers_of_images_are_learned_in_their_own_units(measured, capsys):
    test = json.loads((measured / "run" / "report.json").read_text())["test"]
    assert test["examples"] == 20
    assert test["r2"] > 0.5  # the mean of the training numbers has at most 0
    picture = str(measured / "pictures" / "test0.png")
    ((place, length),) = load(measured / "run").predict([picture])
    assert 95 < place < 112
    assert -0.3 < length < 1.2
    assert main(["predict", str(measured / "run"), picture]) == 0
    assert [float(part) for part in capsys.readouterr().out.split(",")] == pytest.approx([place, length], rel=1e-3)
    assert main(["predict", str(measured / "run"), picture, "--n-best", "2"]) == 2
    assert "--n-best must be 1 for a run that predicts numbers, got 2" in capsys.readouterr().err
    (seen,) = check_capture(load(measured / "run"), [picture])
    assert seen.sample.title.startswith("test0.png -> ")
    with pytest.raises(UserError, match="this run predicts numbers, which have no probability"):
        load(measured / "run").look([picture], gradients=True)
    assert main(["look", str(measured / "run"), picture, "--gradients", "--out", str(measured / "a.html")]) == 2
    assert "which have no probability" in capsys.readouterr().err
    assert not (measured / "a.html").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("pictures/test0.png", "line 2: expected file and label separated by a comma"),
        ("pictures/none.png,1", "line 2 .*none.png"),
        ("pictures/test0.png,1", "line 2 .*expected 2 numbers.*got '1'"),
    ],
)
def test_bad_lines_of_a_list_are_named(measured, line, message):
    path = measured / "bad.csv"
    path.write_text(f'pictures/test1.png,"1,2"\n{line}\n', encoding="utf-8")
    with pytest.raises(UserError, match=rf"bad.csv, {message}"):
        load(measured / "run").evaluate(path)
    told: list[str] = []
    assert load(measured / "run", tell=told.append).evaluate(path, on_bad="skip")["examples"] == 1
    assert len(told) == (line != "pictures/test0.png,1")


@pytest.mark.parametrize("target", ["labels", "number"])
def test_synthetic_reviews_have_every_target(target, tmp_path):
    options = "--train.steps 2 --train.validate-every 2 --train.tensorboard false --model.core.width 8"
    words = f"train reviews --run {tmp_path / 'run'} --data.target {target} --model.core.hidden 8 {options}".split()
    assert main(words) == 0
    test = json.loads((tmp_path / "run" / "report.json").read_text())["test"]
    assert {"micro_f1", "average_precision"} <= set(test) if target == "labels" else {"mae", "r2"} <= set(test)


def test_separator_is_one_character():
    with pytest.raises(UserError, match="`separator` must be one character"):
        LabeledConfig(separator="")
