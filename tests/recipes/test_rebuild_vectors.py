"""Autoencoders of two numbers: training, inputs, energy, and the picture of the manifold."""

import numpy as np
import pytest
import torch
from PIL import Image

from regard.look.figures.manifold import CELLS, FINE, STEPS, plane
from regard.recipes.load import load
from regard.recipes.rebuild.recipe import map_energy, trace_codes
from tests.recipes.capture_checks import predict_each
from tests.recipes.commands import command, failure, printed, printed_json, report

LIMITS = "--train.warmup 10 --train.validate-every 200 --train.tensorboard false --batch 64"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors") / "run"
    model = "--data vectors --data.samples 600 --model.code-dim 1 --model.hidden 48"
    command(f"train rebuild --run {folder} {model} --train.steps 800 --train.lr 1e-2 {LIMITS}")
    return folder


def test_the_manifold_follows_the_data_and_has_low_energy(run):
    test, trained = report(run), load(run)
    assert test["mse"] < 0.5 * test["mse_pca"]
    assert test["signature"] == "2 numbers, 1 number"
    data = trained.recipe.train.data.values
    curve = trace_codes(trained.model, data)
    assert curve.shape == (STEPS * FINE + 1, 2)
    # The ends of the curve are the reconstructions of the smallest and the largest code.
    with torch.no_grad():
        codes = trained.model.encode(torch.from_numpy(data))[:, 0]
        extremes = data[[int(codes.argmin()), int(codes.argmax())]]
        ends = trained.model(torch.from_numpy(extremes)).numpy()
    assert curve[[0, -1]] == pytest.approx(ends, abs=1e-5)
    radius = np.hypot(curve[:, 0] / 2, curve[:, 1] / 1.5)
    assert np.abs(radius - 1).mean() < 0.2
    # The grid is F itself, rows along the second number.
    (x, y), energy = plane(data), map_energy(trained.model, data)
    assert energy.shape == (CELLS, CELLS)
    expected = trained.predict([[float(x[5]), float(y[70])]], energy=True)
    assert energy[70, 5] == pytest.approx(expected[0], rel=1e-4)
    # The middle of the ellipse is far from the manifold.
    middle, far = trained.predict(["0, 0", "2, 0"], energy=True)
    assert middle > 5 * np.mean(trained.predict(data[:50], energy=True)) > 0
    assert middle > far


def test_inputs_are_texts_lines_of_files_and_sequences(run, tmp_path, capsys):
    trained = load(run)
    codes = predict_each(trained, [[1.0, 0.5], "1, 0.5", np.array([1.0, 0.5])])
    assert codes[0].shape == (1,)
    assert codes[0] == codes[1] == codes[2]
    (tmp_path / "points.csv").write_text("x,y\n1,0.5\n2,0\n")
    first, _ = printed(capsys, "predict", run, tmp_path / "points.csv").split()
    assert float(first) == pytest.approx(codes[0].item(), rel=1e-3)
    answer = printed_json(capsys, "predict", run, "1 0.5", "--energy")
    assert answer["energy"] == pytest.approx(2 * answer["error"], rel=1e-5)
    assert "input 1: expected 2 numbers" in failure(capsys, "predict", run, "1 0.5 3")


def test_look_draws_the_manifold(run, tmp_path, capsys):
    out, view = tmp_path / "manifold.png", ("--view", "manifold")
    command("look", run, *view, "--out", out)
    with Image.open(out) as picture:
        assert min(picture.size) > 300
    command("look", run, "0, 0", "--out", tmp_path / "input.svg")
    text = (tmp_path / "input.svg").read_text(encoding="utf-8")
    assert "input y and its reconstruction" in text
    assert "h swept" in text
    assert "already exists" in failure(capsys, "look", run, *view, "--out", out)
    assert "needs a figure, --out FILE" in failure(capsys, "look", run, *view)


def test_own_data_of_another_size_and_codes_have_no_such_picture(run, tmp_path, capsys):
    folder = tmp_path / "run"
    np.save(tmp_path / "train.npy", np.random.default_rng(3).random((40, 3)))
    (tmp_path / "test.csv").write_text("a,b,c\n0.1,0.2,0.3\n0.5,0.5,0.5\n")
    data = f"--data vectors --data.train {tmp_path}/train.npy --data.test {tmp_path}/test.csv"
    formula = "--model.layers 1 --model.code-activation sigmoid --model.output-activation sigmoid"
    cost = "--model.cost cross-entropy --model.regularizer kl --model.code-dim 2 --train.steps 2"
    command(f"train rebuild --run {folder} {LIMITS} {data} {formula} {cost}")
    assert report(folder)["examples"] == 2
    message = failure(capsys, "look", folder, "--view", "manifold", "--out", tmp_path / "m.png")
    assert "the manifold needs vectors of 2 numbers, got 3" in message
    message = failure(capsys, "predict", folder, "0.1 0.2 0.3", "--energy")
    assert "kl, a mean over a batch, has no energy of one input" in message
    message = failure(capsys, "predict", folder, "0.1 0.2 1.5")
    assert "input 1: numbers must be from 0 to 1" in message
    model = load(run).model
    assert map_energy(load(folder).model, np.zeros((3, 2), np.float32)) is None
    two = model.__class__(load(run).config.model.__class__(code_dim=2), (2,))
    assert trace_codes(two, np.zeros((3, 2), np.float32)) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model.kind quantized", "model.kind must be dense with data=vectors, got quantized"),
        ("--model.regularizer kl --model.code-activation relu", "code-activation must be sigmoid"),
        ("--data.train {}/one.csv", "1 vectors are too few"),
        ("--data.train {}/two.csv --data.val {}/one.csv", "expected 2 numbers"),
        (
            "--model.output-activation sigmoid --model.cost cross-entropy",
            "a synthetic ellipse: numbers must be from 0 to 1 with --model.cost cross-entropy",
        ),
    ],
)
def test_data_that_cannot_be_used_is_named_before_training(words, message, tmp_path, capsys):
    (tmp_path / "one.csv").write_text("x,y,z\n1,2,3\n")
    (tmp_path / "two.csv").write_text("x,y\n1,2\n3,4\n")
    train = f"train rebuild --run {tmp_path}/run --data vectors --train.steps 2 {LIMITS}"
    assert message in failure(capsys, f"{train} {words.replace('{}', str(tmp_path))}")
    assert not (tmp_path / "run").exists()


def test_runs_of_other_recipes_have_no_manifold(finished_run, tmp_path, capsys):
    words = ("--view", "manifold", "--out", tmp_path / "m.png")
    message = failure(capsys, "look", finished_run, *words)
    assert "translate has no manifold of reconstructions" in message
