"""Runs of detection in point clouds, from files to answers."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from regard.cli.main import main
from regard.errors import UserError
from regard.recipes.load import load
from regard.recipes.points.top_view import draw_top_view, place_on_top_view
from tests.data.test_clouds import ply
from tests.recipes.capture_checks import (
    check_capture,
    check_gradients,
    check_test_input,
    predict_each,
)
from tests.recipes.toy_clouds import FORMATS, SMALL, write_clouds

LIMITS = (
    "--train.warmup 10 --train.validate-every 100 --train.tensorboard false "
    "--train.precision float32 --train.lr 3e-3"
)


@pytest.fixture(scope="module")
def clouds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clouds")
    files = write_clouds(folder)
    assert (
        main(
            (
                f"train points --run {folder / 'run'} {files} {SMALL} {LIMITS} --train.steps 150"
            ).split()
        )
        == 0
    )
    return folder


def with_boxes(folder) -> str:
    """Return the test cloud with the most boxes, an npz."""
    trained = load(folder / "run")
    names = [f"test{i}.npz" for i in range(0, 16, 4)]
    return max(names, key=lambda name: len(trained.predict([folder / name])[0]))


def test_boxes_are_detected(clouds, capsys):
    test = json.loads((clouds / "run" / "report.json").read_text())["test"]
    assert test["ap25"] > 5  # boxes at random places: about 1
    assert test["examples"] == 16
    path = clouds / with_boxes(clouds)
    (predictions,) = load(clouds / "run").predict([path])
    assert main(["predict", str(clouds / "run"), str(path)]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines() if line]
    assert [(row[0], *map(float, row[1:])) for row in rows] == [
        (box.label, *(pytest.approx(number, abs=1e-3) for number in box[1:])) for box in predictions
    ]
    assert main(["predict", str(clouds / "run"), str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["boxes"] == [
        pytest.approx(box._asdict()) for box in predictions
    ]


def test_scores_are_those_of_the_predictions(clouds, capsys):
    assert main(["evaluate", str(clouds / "run"), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    arguments = ["--data.test", str(clouds / "test.csv")]
    assert main(["evaluate", str(clouds / "run"), "--json", *arguments]) == 0
    assert json.loads(capsys.readouterr().out) == scores
    assert set(scores["classes"]) == {"low", "tall"}


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


def test_the_same_points_in_any_format_have_the_same_boxes(clouds, tmp_path):
    with np.load(clouds / with_boxes(clouds)) as file:
        points = np.column_stack((file["points"], file["intensity"])).round(3)
    paths = [tmp_path / f"same.{kind}" for kind in FORMATS]
    for path in paths:
        path.write_bytes(FORMATS[path.suffix[1:]](points))
    answers = predict_each(load(clouds / "run"), [*paths, points])
    assert all(answer == answers[0] for answer in answers)
    assert answers[0]


def test_queries_and_groups_have_places_on_the_top_view(clouds):
    trained, path = load(clouds / "run"), clouds / with_boxes(clouds)
    (maps,) = check_capture(trained, [path])
    picture, axes = maps.sample.pictures["image"], maps.sample.axes
    assert picture.pixels.shape == (400, 400, 3)
    (predictions,) = trained.predict([path])
    assert [(box.label, box.score) for box in picture.boxes] == [
        (box.label, box.score) for box in predictions
    ]
    assert len(axes["source"]) == 32
    assert len(axes["queries"]) == 4
    with np.load(path) as file:
        middle = (file["points"].min(0) + file["points"].max(0)) / 2
        centers = {tuple(point) for point in file["points"].round(2).tolist()}
    width, depth, _ = trained.recipe.scale.extent
    for box, answer in zip(picture.boxes, predictions, strict=True):
        left, top, wide, high = box.place
        assert (left + wide / 2 - 0.5) * width + middle[0] == pytest.approx(answer.x, abs=1e-6)
        assert (0.5 - top - high / 2) * depth + middle[1] == pytest.approx(answer.y, abs=1e-6)
        assert (wide * width, high * depth) == pytest.approx((answer.dx, answer.dy))
        assert axes["queries"].places[box.query] == box.place
    for label in axes["source"].labels:  # each group stands at a point of the cloud
        words = label.replace(",", "").split()
        assert (
            min(
                np.abs(np.subtract(center, [float(words[i]) for i in (1, 3, 5)])).max()
                for center in centers
            )
            < 0.011
        )
    cross = maps.find("cross")[0].weights
    assert cross.shape[1:] == (4, 32)


def test_detections_are_drawn(clouds):
    out = clouds / "seen.png"
    assert (
        main(["look", str(clouds / "run"), str(clouds / with_boxes(clouds)), "--out", str(out)])
        == 0
    )
    with Image.open(out) as figure:
        assert figure.size[0] > 300


def test_top_view_shows_x_to_the_right_and_y_upward():
    points = np.array([[1.0, 0.5, 0.0], [-1.0, -0.5, 1.0]])
    image = draw_top_view(points, (4.0, 2.0, 3.0))
    assert image.shape == (200, 400, 3)
    low, high = np.argwhere((image < 255).any(-1)), np.argwhere((image < 150).all(-1))
    assert low.tolist()[0] == [round(0.25 * 198), round(0.75 * 398)]
    assert high.tolist()[0] == [round(0.75 * 198), round(0.25 * 398)]  # the higher point is darker
    assert place_on_top_view(np.array([0.75, 0.75]), np.array([0.5, 0.1])) == pytest.approx(
        (0.5, 0.2, 0.5, 0.1)
    )


def test_gradients_are_those_of_the_detected_boxes(clouds):
    check_gradients(load(clouds / "run"), [clouds / with_boxes(clouds)])


def test_clouds_are_accepted_as_arrays(clouds):
    trained = load(clouds / "run")
    test_input = check_test_input(trained)
    assert test_input.shape[1] == 4
    few = np.array([[0.0, 0, 0, 100], [1, 1, 0.5, 20]])
    assert len(trained.predict([few, few[:1]])) == 2
    for bad in (
        test_input[:, :3],
        test_input[0],
        test_input.astype(str),
        np.zeros((2, 4), complex),
        [[1], [1, 2]],
    ):
        with pytest.raises(
            UserError, match=r"input 1: points must be numbers \(points, 4\): x, y, z and features"
        ):
            trained.predict([bad])
    with pytest.raises(UserError, match="input 2: contains no point"):
        trained.predict([few, few[:0]])
    with pytest.raises(UserError, match="input 1: point 2 must have numbers of at most 1e"):
        trained.predict([np.array([[0.0, 0, 0, 0], [0, np.nan, 0, 0]])])
    notes = []
    trained.recipe.notify = notes.append
    trained.predict([np.array([[0.0, 0, 0, 100], [30, 1, 0.5, 20]])])
    assert len(notes) == 1
    assert notes[0].startswith("input 1: spans 30 x 1 x 0.5 m; boxes are found in the ")


def test_a_bad_file_is_named(clouds, tmp_path, capsys):
    (tmp_path / "no.ply").write_bytes(ply("ascii", np.ones((2, 4)), count=9))
    assert main(["predict", str(clouds / "run"), str(tmp_path / "no.ply")]) == 2
    assert "no.ply: its header states 9 points, it holds 2" in capsys.readouterr().err


def test_data_that_does_not_fit_is_refused_before_training(clouds, tmp_path, capsys):
    arguments = f"train points --run {tmp_path / 'no'} --data.train {clouds / 'train.csv'}".split()
    assert main([*arguments, "--model.num-queries", "1"]) == 2
    assert "has 2 boxes, but the model detects at most 1" in capsys.readouterr().err
    assert main([*arguments, "--data.features", "reflectance"]) == 2
    assert "train.csv, line 2: " in capsys.readouterr().err
    (tmp_path / "other.csv").write_text(
        f"file,x,y,z,dx,dy,dz,label\n{clouds / 'test0.npz'},0,0,0,1,1,1,lamp\n", encoding="utf-8"
    )
    assert main([*arguments, "--data.test", str(tmp_path / "other.csv")]) == 2
    assert "label 'lamp' of" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_rooms_are_made_if_no_data_is_given(monkeypatch, tmp_path):
    monkeypatch.setattr("regard.data.embedded.rooms._COUNT", {"train": 4, "val": 2, "test": 2})
    small = SMALL.replace(" --data.features intensity", "").replace(
        "--data.points 160", "--data.points 200"
    )
    arguments = (
        f"train points --run {tmp_path / 'run'} {small} {LIMITS} "
        f"--train.steps 2 --model.num-queries 16"
    )
    assert main(arguments.split()) == 0
    trained = load(tmp_path / "run")
    assert trained.recipe.labels.names == trained.recipe.train.data.labels.names
    assert trained.evaluate()["data"] == "synthetic rooms, test"
    assert len(trained.test_input(1)) <= 200
    with torch.no_grad():
        assert trained.predict([trained.test_input(0)], threshold=0.0)[0]
