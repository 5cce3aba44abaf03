"""Autoencoders of two numbers: training, inputs, energy, and the picture of the manifold."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from regard.cli.main import main
from regard.errors import UserError
from regard.look.figures.manifold import CELLS, FINE, STEPS, plane
from regard.recipes.load import load
from regard.recipes.rebuild.recipe import map_energy, trace_codes
from tests.recipes.capture_checks import predict_each

LIMITS = "--train.warmup 10 --train.validate-every 200 --train.tensorboard false --batch 64"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vectors")
    model = (
        "--data vectors --data.samples 600 --model.code-dim 1 --model.hidden "
        "48 --train.steps 800 --train.lr 1e-2"
    )
    assert main(f"train rebuild --run {folder / 'run'} {model} {LIMITS}".split()) == 0
    return folder / "run"


def test_the_manifold_follows_the_data_and_has_low_energy(run):
    test = json.loads((run / "report.json").read_text())["test"]
    assert test["mse"] < 0.5 * test["mse_pca"]
    assert test["signature"] == "2 numbers, 1 number"
    trained = load(run)
    data = trained.recipe.train.data.values
    curve = trace_codes(trained.model, data)
    assert curve.shape == (STEPS * FINE + 1, 2)
    # The ends of the curve are the reconstructions of the smallest and the largest code.
    with torch.no_grad():
        codes = trained.model.encode(torch.from_numpy(data))[:, 0]
        ends = trained.model(
            torch.from_numpy(data[[int(codes.argmin()), int(codes.argmax())]])
        ).numpy()
    assert curve[[0, -1]] == pytest.approx(ends, abs=1e-5)
    radius = np.hypot(curve[:, 0] / 2, curve[:, 1] / 1.5)
    assert np.abs(radius - 1).mean() < 0.2
    # Energies: the grid is F itself, rows along the second number; the middle of the ellipse is far
    # from the manifold.
    (x, y), energy = plane(data), map_energy(trained.model, data)
    assert energy.shape == (CELLS, CELLS)
    expected = trained.predict([[float(x[5]), float(y[70])]], energy=True)
    assert energy[70, 5] == pytest.approx(expected[0], rel=1e-4)
    middle, far = trained.predict(["0, 0", "2, 0"], energy=True)
    assert middle > 5 * np.mean(trained.predict(data[:50], energy=True)) > 0
    assert middle > far


def test_inputs_are_texts_lines_of_files_and_sequences(run, tmp_path, capsys):
    trained = load(run)
    inputs = [[1.0, 0.5], "1, 0.5", np.array([1.0, 0.5])]
    assert trained.predict(inputs).shape == (3, 1)
    codes = predict_each(trained, inputs)
    assert torch.equal(codes[0], codes[1])
    assert torch.equal(codes[0], codes[2])
    (tmp_path / "points.csv").write_text("x,y\n1,0.5\n2,0\n")
    assert main(["predict", str(run), str(tmp_path / "points.csv")]) == 0
    lines = capsys.readouterr().out.split()
    assert float(lines[0]) == pytest.approx(codes[0].item(), rel=1e-3)
    assert len(lines) == 2
    assert main(["predict", str(run), "1 0.5", "--json", "--energy"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["energy"] == pytest.approx(2 * answer["error"], rel=1e-5)
    assert main(["predict", str(run), "1 0.5 3"]) == 2
    assert "input 1: expected 2 numbers" in capsys.readouterr().err


def test_look_draws_the_manifold(run, tmp_path, capsys):
    out = tmp_path / "manifold.png"
    assert main(["look", str(run), "--view", "manifold", "--out", str(out)]) == 0
    with Image.open(out) as picture:
        assert min(picture.size) > 300
    assert main(["look", str(run), "0, 0", "--out", str(tmp_path / "input.svg")]) == 0
    text = (tmp_path / "input.svg").read_text(encoding="utf-8")
    assert "input y and its reconstruction" in text
    assert "h swept" in text
    assert main(["look", str(run), "--view", "manifold", "--out", str(out)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["look", str(run), "--view", "manifold"]) == 2
    assert "needs --out FILE" in capsys.readouterr().err


def train(folder, words: str) -> int:
    return main(f"train rebuild --run {folder / 'run'} --train.steps 2 {LIMITS} {words}".split())


def test_own_data_of_another_size_and_codes_have_no_such_picture(run, tmp_path, capsys):
    draw = np.random.default_rng(3)
    np.save(tmp_path / "train.npy", draw.random((40, 3)))
    (tmp_path / "test.csv").write_text("a,b,c\n0.1,0.2,0.3\n0.5,0.5,0.5\n")
    data = f"--data vectors --data.train {tmp_path}/train.npy --data.test {tmp_path}/test.csv"
    formula = "--model.layers 1 --model.code-activation sigmoid --model.output-activation sigmoid"
    cost = "--model.cost cross-entropy --model.regularizer kl --model.code-dim 2"
    assert train(tmp_path, f"{data} {formula} {cost}") == 0
    folder = str(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "report.json").read_text())["test"]["examples"] == 2
    capsys.readouterr()
    assert main(["look", folder, "--view", "manifold", "--out", str(tmp_path / "m.png")]) == 2
    assert "the manifold needs vectors of 2 numbers, got 3" in capsys.readouterr().err
    assert main(["predict", folder, "0.1 0.2 0.3", "--energy"]) == 2
    assert "kl, a mean over a batch, has no energy of one input" in capsys.readouterr().err
    assert main(["predict", folder, "0.1 0.2 1.5"]) == 2
    assert "input 1: numbers must be from 0 to 1" in capsys.readouterr().err
    model = load(run).model
    assert map_energy(load(folder).model, np.zeros((3, 2), np.float32)) is None
    two = model.__class__(load(run).config.model.__class__(code_dim=2), (2,))
    assert trace_codes(two, np.zeros((3, 2), np.float32)) is None
    (tmp_path / "run" / "artifacts" / "vectors.json").unlink()
    with pytest.raises(UserError, match=r"vectors\.json"):
        load(folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--data vectors --model.kind quantized",
            "model.kind must be dense with data=vectors, got quantized",
        ),
        (
            "--model.regularizer kl --model.code-activation relu",
            "code-activation must be sigmoid with regularizer=kl",
        ),
        ("--data vectors --data.train {}/one.csv", "1 vectors are too few"),
        ("--data vectors --data.train {}/two.csv --data.val {}/one.csv", "expected 2 numbers"),
        (
            "--data vectors --model.output-activation sigmoid --model.cost cross-entropy",
            "a synthetic ellipse: numbers must be from 0 to 1 with --model.cost cross-entropy, got "
            "-",
        ),
    ],
)
def test_data_that_cannot_be_used_is_named_before_training(words, message, tmp_path, capsys):
    (tmp_path / "one.csv").write_text("x,y,z\n1,2,3\n")
    (tmp_path / "two.csv").write_text("x,y\n1,2\n3,4\n")
    assert train(tmp_path, words.replace("{}", str(tmp_path))) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_runs_of_images_and_other_recipes_have_no_manifold(finished_run, tmp_path, capsys):
    words = ["look", str(finished_run), "--view", "manifold", "--out", str(tmp_path / "m.png")]
    assert main(words) == 2
    assert "translate has no manifold of reconstructions" in capsys.readouterr().err
