"""Runs of detection in point clouds, from files to answers."""

import numpy as np
import pytest
from PIL import Image

from regard.errors import UserError
from regard.recipes.load import load
from regard.recipes.points.recipe import draw_top_view, place_on_top_view
from tests.recipes.capture_checks import (
    check_capture,
    check_gradients,
    check_test_input,
    predict_each,
)
from tests.recipes.commands import command, failure, printed, printed_json, report
from tests.recipes.toy_clouds import SMALL, write_clouds

LIMITS = (
    "--train.warmup 10 --train.validate-every 100 --train.tensorboard false "
    "--train.precision float32 --train.lr 3e-3"
)


@pytest.fixture(scope="module")
def clouds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clouds")
    files = write_clouds(folder)
    command(f"train points --run {folder}/run {files} {SMALL} {LIMITS} --train.steps 150")
    return folder


def with_boxes(folder) -> str:
    """Return the test cloud with the most boxes, an npz."""
    trained = load(folder / "run")
    names = [f"test{i}.npz" for i in range(0, 16, 4)]
    return max(names, key=lambda name: len(trained.predict([folder / name])[0]))


def test_boxes_are_detected(clouds, capsys):
    test, run = report(clouds / "run"), clouds / "run"
    assert test["ap25"] > 5  # boxes at random places: about 1
    assert test["examples"] == 16
    assert set(test["classes"]) == {"low", "tall"}
    assert printed_json(capsys, "evaluate", run, "--data.test", clouds / "test.csv") == test
    path = clouds / with_boxes(clouds)
    (predictions,) = load(run).predict([path])
    lines = printed(capsys, "predict", run, path).splitlines()
    for line, box in zip(lines, predictions, strict=True):
        label, *numbers = line.split("\t")
        assert label == box.label
        assert [float(number) for number in numbers] == pytest.approx(box[1:], abs=1e-3)
    answers = printed_json(capsys, "predict", run, path)["boxes"]
    assert answers == [pytest.approx(box._asdict()) for box in predictions]
    command("look", run, path, "--out", clouds / "seen.png")
    with Image.open(clouds / "seen.png") as figure:
        assert figure.size[0] > 300


def test_order_and_place_of_a_cloud_have_no_effect(clouds):
    trained = load(clouds / "run")
    with np.load(clouds / with_boxes(clouds)) as file:
        points = np.column_stack((file["points"], file["intensity"]))
    other = np.random.default_rng(2).permutation(points)
    first, second = predict_each(trained, [points, other])
    assert first == second != []
    moved = points + np.array([512.0, -64, 8, 0])
    (third,) = trained.predict([moved])
    for a, b in zip(first, third, strict=True):
        assert b[2:] == pytest.approx((a.x + 512, a.y - 64, a.z + 8, a.dx, a.dy, a.dz), abs=1e-4)


def test_queries_and_groups_have_places_on_the_top_view(clouds):
    trained, path = load(clouds / "run"), clouds / with_boxes(clouds)
    (maps,) = check_capture(trained, [path])
    picture, axes = maps.sample.pictures["image"], maps.sample.axes
    assert picture.pixels.shape == (400, 400, 3)
    (predictions,) = trained.predict([path])
    assert (len(axes["source"]), len(axes["queries"])) == (32, 4)
    with np.load(path) as file:
        points = file["points"]
    middle = (points.min(0) + points.max(0)) / 2
    width, depth, _ = trained.recipe.scale.extent
    for box, answer in zip(picture.boxes, predictions, strict=True):
        assert (box.label, box.score) == answer[:2]
        left, top, wide, high = box.place
        assert (left + wide / 2 - 0.5) * width + middle[0] == pytest.approx(answer.x, abs=1e-6)
        assert (0.5 - top - high / 2) * depth + middle[1] == pytest.approx(answer.y, abs=1e-6)
        assert (wide * width, high * depth) == pytest.approx((answer.dx, answer.dy))
        assert axes["queries"].places[box.query] == box.place
    for label in axes["source"].labels:  # each group stands at a point of the cloud
        words = label.replace(",", "").split()
        center = [float(words[i]) for i in (1, 3, 5)]
        assert np.abs(points - center).max(1).min() < 0.011
    assert maps.find("cross")[0].weights.shape[1:] == (4, 32)


def test_top_view_shows_x_to_the_right_and_y_upward():
    points = np.array([[1.0, 0.5, 0.0], [-1.0, -0.5, 1.0]])
    image = draw_top_view(points, (4.0, 2.0, 3.0))
    assert image.shape == (200, 400, 3)
    low, high = np.argwhere((image < 255).any(-1)), np.argwhere((image < 150).all(-1))
    assert low.tolist()[0] == [round(0.25 * 198), round(0.75 * 398)]
    assert high.tolist()[0] == [round(0.75 * 198), round(0.25 * 398)]  # the higher point is darker
    place = place_on_top_view(np.array([0.75, 0.75]), np.array([0.5, 0.1]))
    assert place == pytest.approx((0.5, 0.2, 0.5, 0.1))


def test_gradients_are_those_of_the_detected_boxes(clouds):
    check_gradients(load(clouds / "run"), [clouds / with_boxes(clouds)])


def test_clouds_are_accepted_as_arrays(clouds):
    trained = load(clouds / "run")
    test_input = check_test_input(trained)
    assert test_input.shape[1] == 4
    few = np.array([[0.0, 0, 0, 100], [1, 1, 0.5, 20]])
    assert len(trained.predict([few, few[:1]])) == 2
    for bad, message in [
        (test_input[:, :3], r"input 1: points must be \(points, 4\), got"),
        ([[1], [1, 2]], "input 1: points must be numbers"),
        (few[:0], "input 1: contains no point"),
        (few * np.nan, "input 1: point 1 .* numbers up to 1e"),
    ]:
        with pytest.raises(UserError, match=message):
            trained.predict([bad])
    notes = []
    trained.recipe.notify = notes.append
    trained.predict([np.array([[0.0, 0, 0, 100], [30, 1, 0.5, 20]])])
    assert len(notes) == 1
    assert notes[0].startswith("input 1: spans 30 x 1 x 0.5 m; boxes are found in the ")


def test_data_that_does_not_fit_is_refused_before_training(clouds, tmp_path, capsys):
    (tmp_path / "other.csv").write_text(
        f"file,x,y,z,dx,dy,dz,label\n{clouds / 'test0.npz'},0,0,0,1,1,1,lamp\n", encoding="utf-8"
    )
    train = f"train points --run {tmp_path}/no --data.train {clouds}/train.csv"
    for words, message in [
        ("--model.num-queries 1", "has 2 boxes, above --model.num-queries 1"),
        ("--data.features reflectance", "train.csv, line 2: "),
        (f"--data.test {tmp_path}/other.csv", "label 'lamp' "),
    ]:
        assert message in failure(capsys, f"{train} {words}")
        assert not (tmp_path / "no").exists()


def test_rooms_are_made_if_no_data_is_given(monkeypatch, tmp_path):
    monkeypatch.setattr("regard.data.embedded.rooms._COUNT", {"train": 4, "val": 2, "test": 2})
    small = SMALL.replace(" --data.features intensity", "").replace("points 160", "points 200")
    more = "--train.steps 2 --model.num-queries 16"
    command(f"train points --run {tmp_path}/run {small} {LIMITS} {more}")
    trained = load(tmp_path / "run")
    assert trained.recipe.labels.names == trained.recipe.train.data.labels.names
    assert trained.evaluate()["data"] == "synthetic rooms, test"
    assert len(trained.test_input(1)) <= 200
    assert trained.predict([trained.test_input(0)], threshold=0.0)[0]
