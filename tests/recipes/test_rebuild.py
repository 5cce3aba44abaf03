"""Run of an autoencoder compared with PCA; PCA by hand."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from regard.errors import UserError
from regard.models.autoencoders.autoencoder import Autoencoder
from regard.models.autoencoders.config import AutoencoderConfig, KLConfig
from regard.models.autoencoders.quantized import QuantizedAutoencoder
from regard.recipes.load import load
from regard.recipes.rebuild.recipe import pca_error
from regard.training.distribution import World
from tests.recipes.commands import command, failure, printed, printed_json, report
from tests.training.toy import settings, train


def test_pca_keeps_what_varies_most():
    draw = np.random.default_rng(1)
    directions = draw.normal(size=(2, 9))
    values = 100 + (draw.normal(size=(450, 2)) * (20, 5)) @ directions
    pixels = np.clip(values, 0, 255).astype(np.uint8).reshape(-1, 1, 3, 3)
    errors = [pca_error(pixels[:400], pixels[400:], size) for size in (1, 2, 9)]
    assert errors[0] > 3 * errors[1] > errors[2]
    assert errors[2] == pytest.approx(0, abs=1e-8)
    assert errors[1] < 1e-5


LIMITS = "--train.lr 3e-3 --train.warmup 10 --train.precision float32 --train.tensorboard false"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rebuild") / "run"
    model = "--model.code-dim 12 --model.hidden 96 --train.steps 250 --train.validate-every 125"
    command(f"train rebuild --run {folder} {model} {LIMITS}")
    return folder


def test_error_is_below_that_of_pca(run):
    test = report(run)
    assert test["examples"] == 297
    assert test["mse"] < test["mse_pca"]


def test_codes_and_pictures_of_files(run, tmp_path, capsys):
    trained, path, out = load(run), tmp_path / "one.png", tmp_path / "both.png"
    image = trained.test_input(100)
    image.save(path)
    codes = trained.predict([path])
    assert codes.shape == (1, 12)
    assert np.array_equal(trained.predict([image]), codes)
    assert np.array_equal(trained.predict([np.asarray(image)]), codes)
    numbers = [float(word) for word in printed(capsys, "predict", run, path).split()]
    assert numbers == pytest.approx(codes[0].tolist(), rel=1e-3, abs=1e-3)
    command("look", run, path, "--out", out)
    with Image.open(out) as picture:
        assert picture.size[0] > 100
    assert "already exists" in failure(capsys, "look", run, path, "--out", out)
    Image.new("L", (8, 8)).save(tmp_path / "black.png")
    pair, again = (tmp_path / "black.png", path), tmp_path / "second.png"
    command("look", run, *pair, "--sample", "1", "--out", again)
    assert again.read_bytes() == out.read_bytes()
    assert "second.png shows input 1 of 2" in capsys.readouterr().err
    command("look", run, *pair, "--out", tmp_path / "both")
    assert (tmp_path / "both/1-one.png").read_bytes() == out.read_bytes()
    message = failure(capsys, "look", run, *pair, "--sample", "2", "--out", tmp_path / "no.png")
    assert "--sample must be between 0 and 1, got 2" in message
    with pytest.raises(UserError, match=r"no attention layers: .*; --out FILE.png shows .* --view"):
        trained.look([image])
    words = (path, "--view", "walk", "--out", tmp_path / "no.png")
    assert "no attention layers" in failure(capsys, "look", run, *words)


def test_energy_is_that_of_the_model_for_each_image(run, tmp_path, capsys):
    trained, path = load(run), tmp_path / "one.png"
    image = trained.test_input(7)
    image.save(path)
    pixels = torch.from_numpy(np.array(image))[None, None].float() / 255
    with torch.no_grad():
        expected = trained.model.energy(pixels).item()
    # The loss is the squared error alone, whose mean over the pixels is the error that is reported.
    error = trained.compute_answers([image])[0].json["error"]
    assert expected == pytest.approx(error * pixels.numel(), rel=1e-5)
    assert trained.predict([image], energy=True) == pytest.approx([expected])
    assert float(printed(capsys, "predict", run, path, "--energy")) == pytest.approx(expected)
    answer = printed_json(capsys, "predict", run, path, "--energy")
    assert answer["energy"] == pytest.approx(expected)
    assert len(answer["code"]) == 12


def test_images_are_encoded_once_and_each_has_the_error_of_its_reconstruction(run, monkeypatch):
    trained, calls = load(run), []
    pixels = np.random.default_rng(3).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8)
    images = torch.from_numpy(pixels).float() / 255
    with torch.no_grad():
        expected = (trained.model(images) - images).square().mean((1, 2, 3)).tolist()
    encode = trained.model.encode
    monkeypatch.setattr(trained.model, "encode", lambda x: calls.append(len(x)) or encode(x))
    errors = [answer.json["error"] for answer in trained.compute_answers(list(pixels))]
    assert calls == [5]
    assert errors == pytest.approx(expected, rel=1e-5)


def test_a_quantized_code_is_learned_and_its_usage_is_reported(tmp_path, capsys):
    run, path = tmp_path / "run", tmp_path / "one.png"
    size = "--model.kind quantized --model.codebook-size 32 --model.code-dim 6 --model.channels 12"
    steps = "--train.steps 150 --train.validate-every 75 --train.keep-finished checkpoints"
    train = f"train rebuild --run {run} {size} {steps} {LIMITS}"
    command(train)
    test = report(run)
    assert test["signature"] == "1 x 8 x 8 pixels, 4 numbers of 32 codes"
    # The mean image alone has an error of 0.07 to 0.08.
    assert test["mse"] < 0.06
    assert 4 < test["codes_used"] <= 32
    assert 1 < test["code_perplexity"] <= test["codes_used"]
    load(run).test_input(100).save(path)
    codes = load(run).predict([path])
    assert codes.shape == (1, 2, 2)
    words = printed(capsys, "predict", run, path).split()
    assert [int(word) for word in words] == codes.flatten().tolist()
    command("look", run, path, "--out", tmp_path / "both.png")
    # Killed after its first checkpoint, it resumes to the same weights: the codebook is saved, too.
    weights = (run / "model.safetensors").read_bytes()
    (run / "report.json").unlink()
    shutil.rmtree(sorted((run / "checkpoints").glob("step-*"))[-1])
    command(train)
    assert (run / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize("setting", ["regularizer kl", "kind quantized"])
def test_what_is_computed_from_a_whole_batch_is_neither_accumulated_nor_split(
    setting, tmp_path, capsys
):
    words = f"--model.{setting} --train.accumulate 2"
    message = failure(capsys, f"train rebuild --run {tmp_path}/run {words}")
    assert f"train.accumulate must be 1 with model.{setting}" in message
    name, value = setting.split()
    config = AutoencoderConfig(**{name: KLConfig() if value == "kl" else value})
    kind = QuantizedAutoencoder if value == "quantized" else Autoencoder
    for accumulate, size in ((2, 1), (1, 2)):
        with pytest.raises(UserError, match=f"one batch of one process with {setting}"):
            train(
                tmp_path,
                settings(accumulate=accumulate),
                model=kind(config, (1, 8, 8)),
                world=World(size=size),
            )
