"""Autoencoders of two numbers: training, inputs, energy, and the picture of the manifold."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from regard.look.manifold import CELLS, FINE, STEPS, plane
from regard.recipes.load import load
from regard.recipes.rebuild.recipe import map_energy, pca_error, sweep_surface, trace_codes
from tests.lectures.table import read_rows
from tests.recipes.capture_checks import predict_each
from tests.recipes.commands import command, failure, printed, printed_json, report

LIMITS = (
    "--train.warmup 10 --train.validate-every 200 --train.tensorboard false --batch 64 "
    "--train.precision float32"
)


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


def test_predict_reads_a_text_file_as_training_does(run, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("1, 0.5\n\n2  0\n")
    codes = printed(capsys, "predict", run, "1 0.5", "2,0")
    assert printed(capsys, "predict", run, tmp_path / "a.txt") == codes
    test = printed_json(capsys, "evaluate", run, "--data.test", tmp_path / "a.txt")
    assert test["examples"] == 2
    (tmp_path / "b.txt").write_text("1, 2\n\n1,2 3\n")
    for words in (("predict", run), ("evaluate", run, "--data.test")):
        message = failure(capsys, *words, tmp_path / "b.txt")
        assert f"{tmp_path}/b.txt, line 3: expected a number, got '2 3'" in message


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
        ("--model.kind quantized", "must be dense or latent with data=vectors, got quantized"),
        ("--data.curve horn", "model.kind must be latent for data with a condition x, got dense"),
        (
            "--data.condition x --model.kind latent",
            "--data.condition names a column of --data.train",
        ),
        ("--model.regularizer kl --model.code-activation relu", "code-activation must be sigmoid"),
        ("--data.train {}/one.csv", "1 vectors are too few"),
        (
            "--data.train {}/two.csv --data.val {}/one.csv",
            "one.csv, line 1: expected the columns x, y, got x, y, z",
        ),
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


@pytest.fixture(scope="module")
def horn(tmp_path_factory):
    """Run of the command of the table of the lectures, with fewer steps, and its picture."""
    folder = tmp_path_factory.mktemp("horn")
    (use,) = [row.use for row in read_rows() if row.key == "E.10"]
    for part in use.split(" && "):
        words = part.replace("runs/rebuild", f"{folder}/run").split()[1:]
        if words[0] == "train":
            words += f"--run {folder}/run --train.steps 400 {LIMITS}".split()
        elif "--out" in words:
            words[words.index("--out") + 1] = f"{folder}/manifold.png"
        command(" ".join(words))
    return folder / "run"


def test_the_surface_is_the_decoder_at_x_and_z(horn):
    test, trained = report(horn), load(horn)
    assert test["mse"] < 0.02 * test["mse_pca"]
    assert test["signature"] == "2 numbers given x, 1 number"
    with Image.open(horn.parent / "manifold.png") as picture:
        assert min(picture.size) > 300
    model, data = trained.model, trained.recipe.train.data.values
    x, surface = sweep_surface(model, data)
    assert x[[0, -1]] == pytest.approx([data[:, 0].min(), data[:, 0].max()])
    assert surface.shape == (len(x), STEPS + 1, 2) == (51, 49, 2)
    z = 5 * np.pi / 24
    inputs = torch.tensor([[np.cos(z), np.sin(z), x[20]]], dtype=torch.float32)
    assert surface[20, 5] == pytest.approx(model.decoder(inputs)[0].detach().numpy(), abs=1e-4)
    assert surface[:, 0] == pytest.approx(surface[:, -1], abs=1e-4)
    # The curve of each x is close to the ellipse that made the data, all around.
    for i in (10, 25, 40):
        radii = np.exp(2 * x[i]) * np.array([2 - x[i] / 2, 1.5 + x[i] / 2])
        ratios = surface[i] / radii
        assert np.hypot(*ratios.T) == pytest.approx(np.ones(STEPS + 1), abs=0.15)
        assert np.abs(np.diff(np.unwrap(np.arctan2(*ratios.T))).sum()) == pytest.approx(2 * np.pi)


def test_own_data_have_a_column_x_anywhere(horn, tmp_path, capsys):
    data = load(horn).recipe.train.data.values[:60]
    lines = [f"{second},{x},{first}" for x, first, second in data.tolist()]
    (tmp_path / "a.csv").write_text("\n".join(["b,age,a", *lines]))
    np.savez(tmp_path / "a.npz", age=data[:, 0], y=data[:, [2, 1]])
    (tmp_path / "b.csv").write_text(
        "\n".join(["a,b,age", *(f"{first},{second},{x}" for x, first, second in data.tolist())])
    )
    (tmp_path / "c.csv").write_text("a,c,age\n1,2,3\n")
    codes = {}
    for name in ("csv", "npz"):
        run, file = tmp_path / name, tmp_path / f"a.{name}"
        words = f"--data vectors --data.train {file} --data.condition age --model.kind latent"
        steps = "--train.steps 8 --train.keep-finished checkpoints"
        limits = LIMITS.replace("every 200", "every 4")
        train = f"train rebuild --run {run} {words} {limits} {steps}"
        command(train)
        # Killed after its first checkpoint, it resumes to the same weights: random z go on, too.
        weights = (run / "model.safetensors").read_bytes()
        (run / "report.json").unlink(missing_ok=True)
        shutil.rmtree(sorted((run / "checkpoints").glob("step-*"))[-1])
        command(train)
        assert (run / "model.safetensors").read_bytes() == weights
        rows = load(run).predict(data[:, [0, 2, 1]])[:, 0].tolist()
        codes[name] = rows
        predicted = [float(line) for line in printed(capsys, "predict", run, file).split()]
        assert predicted == pytest.approx(rows, rel=1e-3)
    assert codes["csv"] == codes["npz"]
    # Columns in another order are found by name.
    run = tmp_path / "csv"
    assert printed(capsys, "predict", run, tmp_path / "b.csv") == printed(
        capsys, "predict", run, tmp_path / "a.csv"
    )
    errors = []
    for name in ("a", "b"):
        words = ("evaluate", run, "--data.test", tmp_path / f"{name}.csv")
        errors.append(printed_json(capsys, *words)["mse"])
    assert errors[0] == errors[1]
    for words in (("predict", run), ("evaluate", run, "--data.test")):
        message = failure(capsys, *words, tmp_path / "c.csv")
        assert "c.csv, line 1: expected the columns age, b, a, got a, c, age" in message
    message = failure(capsys, "predict", run, ",0.5,1.5,0")
    assert "input 1: expected 3 numbers, got 4 (', 0.5, 1.5, 0')" in message
    x, first, second = data[0].tolist()
    answer = printed_json(capsys, "predict", horn, f"{x}, {first}, {second}", "--energy")
    assert answer["energy"] == pytest.approx(2 * answer["error"], rel=1e-5)
    assert 0 <= answer["code"][0] < 2 * np.pi + 1e-6
    stages = [line.split() for line in printed(capsys, "look", horn, "--model").splitlines()]
    assert ["input", "condition", "x", "(batch,", "1)"] in stages
    middle = load(horn).predict([[x, 0, 0]], energy=True)
    assert middle[0] > 50 * answer["energy"]
    command("look", horn, f"{x}, 0, 0", "--out", tmp_path / "point.svg")
    text = (tmp_path / "point.svg").read_text(encoding="utf-8")
    assert "x and z swept" in text
    assert "input y and its reconstruction" in text


def test_components_given_x_are_those_of_the_residuals():
    x, z = np.random.default_rng(1).normal(size=(2, 50, 1)).astype(np.float32)
    rows = np.concatenate((x, x @ [[1, 2, 3]] + z @ [[2, -1, 0.5]] + 4), 1).astype(np.float32)
    assert pca_error(rows[:30], rows[30:], 1, 1) == pytest.approx(0, abs=1e-9)
    assert pca_error(rows[:30, 1:], rows[30:, 1:], 1) > 0.1


@pytest.mark.parametrize("finished_run", ["transformer"], indirect=True)
def test_runs_of_other_recipes_have_no_manifold(finished_run, tmp_path, capsys):
    words = ("--view", "manifold", "--out", tmp_path / "m.png")
    message = failure(capsys, "look", finished_run, *words)
    assert "translate has no manifold of reconstructions" in message
