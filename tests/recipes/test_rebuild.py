"""Run of an autoencoder compared with PCA; PCA by hand."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regard.cli.main import main
from regard.errors import UserError
from regard.recipes.load import load
from regard.recipes.rebuild.recipe import pca_error


def test_pca_keeps_what_varies_most():
    draw = np.random.default_rng(1)
    directions = draw.normal(size=(2, 9))
    train, test = (100 + (draw.normal(size=(n, 2)) * (20, 5)) @ directions for n in (400, 50))
    as_bytes = [np.clip(x, 0, 255).astype(np.uint8).reshape(-1, 1, 3, 3) for x in (train, test)]
    errors = [pca_error(*as_bytes, size) for size in (1, 2, 9)]
    assert errors[0] > 3 * errors[1] > errors[2]
    assert errors[2] == pytest.approx(0, abs=1e-8)
    assert errors[1] < 1e-5


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rebuild")
    limits = (
        "--train.steps 250 --train.lr 3e-3 --train.warmup 10 --train.validate-every 125 "
        "--train.tensorboard false"
    )
    model = "--model.code-dim 12 --model.hidden 96"
    assert main(f"train rebuild --run {folder / 'run'} {model} {limits}".split()) == 0
    return folder / "run"


def test_error_is_below_that_of_pca(run):
    test = json.loads((run / "report.json").read_text())["test"]
    assert test["examples"] == 297
    assert test["mse"] < test["mse_pca"]


def test_codes_and_pictures_of_files(run, tmp_path, capsys):
    with np.load(Path(__file__).parents[2] / "regard/data/embedded/digits.npz") as content:
        Image.fromarray(np.minimum(content["pixels"][1600] * 16.0, 255).astype(np.uint8)).save(
            tmp_path / "one.png"
        )
    path = str(tmp_path / "one.png")
    codes = load(run).predict([path])
    assert codes.shape == (1, 12)
    assert main(["predict", str(run), path]) == 0
    numbers = [float(word) for word in capsys.readouterr().out.split()]
    assert numbers == pytest.approx(codes[0].tolist(), rel=1e-3, abs=1e-3)
    out = tmp_path / "both.png"
    assert main(["look", str(run), path, "--out", str(out)]) == 0
    with Image.open(out) as picture:
        assert picture.size[0] > 100
    assert main(["look", str(run), path, "--out", str(out)]) == 2
    assert "already exists" in capsys.readouterr().err
    Image.new("L", (8, 8)).save(tmp_path / "black.png")
    pair = [str(tmp_path / "black.png"), path]
    again = tmp_path / "second.png"
    assert main(["look", str(run), *pair, "--sample", "1", "--out", str(again)]) == 0
    assert again.read_bytes() == out.read_bytes()
    assert "second.png shows input 1 of 2" in capsys.readouterr().err
    assert main(["look", str(run), *pair, "--out", str(tmp_path / "both")]) == 0
    assert (tmp_path / "both/1-one.png").read_bytes() == out.read_bytes()
    assert main(["look", str(run), *pair, "--sample", "2", "--out", str(tmp_path / "no.png")]) == 2
    assert "--sample must be between 0 and 1, got 2" in capsys.readouterr().err
    with pytest.raises(UserError, match="no attention layers"):
        load(run).look([path], gradients=True)


def test_energy_is_that_of_the_model_for_each_image(run, tmp_path, capsys):
    trained = load(run)
    image = trained.test_input(7)
    image.save(tmp_path / "one.png")
    pixels = np.array(image)[None]
    with torch.no_grad():
        expected = trained.model.energy(torch.from_numpy(pixels)[None].float() / 255).item()
    # The loss is the squared error alone, whose mean over the pixels is the error that is reported.
    error = trained.compute_answers([pixels])[0].json["error"]
    assert expected == pytest.approx(error * pixels.size, rel=1e-5)
    assert trained.predict([pixels], energy=True) == pytest.approx([expected])
    assert main(["predict", str(run), str(tmp_path / "one.png"), "--energy"]) == 0
    assert float(capsys.readouterr().out) == pytest.approx(expected, rel=1e-5)
    assert main(["predict", str(run), str(tmp_path / "one.png"), "--energy", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["energy"] == pytest.approx(expected)
    assert len(answer["code"]) == 12


def test_pixels_are_accepted_and_there_is_no_attention(run, tmp_path):
    trained = load(run)
    test_input = trained.test_input(100)
    test_input.save(tmp_path / "one.png")
    assert np.array_equal(trained.predict([test_input]), trained.predict([tmp_path / "one.png"]))
    with pytest.raises(UserError, match="has 297 inputs, from 0: no input 297"):
        trained.test_input(297)
    assert np.array_equal(trained.predict([test_input]), trained.predict([np.asarray(test_input)]))
    with pytest.raises(UserError, match=r"no attention layers: .*; --out FILE.png shows .* --view"):
        trained.look([test_input])


def test_images_are_encoded_once_and_each_has_the_error_of_its_reconstruction(run, monkeypatch):
    trained, calls = load(run), []
    pixels = np.random.default_rng(3).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8)
    images = torch.from_numpy(pixels).float() / 255
    with torch.no_grad():
        expected = (trained.model(images) - images).square().mean((1, 2, 3))
    encode = trained.model.encode
    monkeypatch.setattr(trained.model, "encode", lambda x: calls.append(len(x)) or encode(x))
    answers = trained.compute_answers(list(pixels))
    assert calls == [5]
    assert [answer.json["error"] for answer in answers] == pytest.approx(
        expected.tolist(), rel=1e-5
    )


def test_a_quantized_code_is_learned_and_its_usage_is_reported(tmp_path, capsys):
    size = "--model.kind quantized --model.codebook-size 32 --model.code-dim 6 --model.channels 12"
    limits = (
        "--train.steps 150 --train.lr 3e-3 --train.warmup 10 --train.validate-every 75 "
        "--train.tensorboard false"
    )
    limits += " --train.keep-finished checkpoints"
    arguments = f"train rebuild --run {tmp_path / 'run'} {size} {limits}".split()
    assert main(arguments) == 0
    test = json.loads((tmp_path / "run" / "report.json").read_text())["test"]
    assert test["signature"] == "1 x 8 x 8 pixels, 4 numbers of 32 codes"
    # The mean image alone has an error of 0.07 to 0.08.
    assert test["mse"] < 0.06
    assert 4 < test["codes_used"] <= 32
    assert 1 < test["code_perplexity"] <= test["codes_used"]
    with np.load(Path(__file__).parents[2] / "regard/data/embedded/digits.npz") as content:
        Image.fromarray(np.minimum(content["pixels"][1600] * 16.0, 255).astype(np.uint8)).save(
            tmp_path / "one.png"
        )
    codes = load(tmp_path / "run").predict([str(tmp_path / "one.png")])
    assert codes.shape == (1, 2, 2)
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "one.png")]) == 0
    assert [int(word) for word in capsys.readouterr().out.split()] == codes.flatten().tolist()
    words = [str(tmp_path / "run"), str(tmp_path / "one.png"), "--out", str(tmp_path / "both.png")]
    assert main(["look", *words]) == 0
    # Killed after its first checkpoint, it resumes to the same weights: the codebook is saved, too.
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "report.json").unlink()
    shutil.rmtree(sorted((tmp_path / "run" / "checkpoints").glob("step-*"))[-1])
    assert main(arguments) == 0
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights
