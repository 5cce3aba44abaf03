"""`regard look --walk` and views of a read's numbers, from the run and from a saved capture."""

from pathlib import Path

import pytest
import torch

from regard.cli.main import main
from regard.look.capture import Capture
from tests.look.pictures import check_picture
from tests.recipes.toy import toy_arguments


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("look")
    assert main(["train", *toy_arguments(folder, core="transformer", steps=2)]) == 0
    return folder


def test_a_saved_capture_draws_the_numbers_of_the_run(folder, capsys):
    run, saved, page = str(folder / "run"), folder / "x.safetensors", folder / "x.html"
    assert main(["look", run, "ada sees bob", "--walk", "--out", str(saved)]) == 0
    attention_map = Capture.open(saved)[0].find("cross")[0]
    vectors = attention_map.vectors()
    assert torch.allclose(attention_map.weights @ vectors.values, vectors.outputs, atol=1e-5)
    assert vectors.source is not None
    for options in ("walk --query 1 --head 2", "multihead", "links"):
        out = folder / "view.svg"
        words = ["--view", *options.split(), "--out", str(out), "--force"]
        assert main(["look", str(saved), *words]) == 0
        check_picture(out)
    assert main(["look", str(saved), "--out", str(page)]) == 0
    assert '"walk": {"tensors"' in page.read_text(encoding="utf-8")
    plain = folder / "plain.safetensors"
    assert main(["look", run, "ada sees bob", "--out", str(plain)]) == 0
    assert Capture.open(plain)[0].maps[0].vectors is None
    # The run itself needs no --walk for these figures; a capture without the numbers says how to
    # get them.
    out = folder / "run.svg"
    assert main(["look", run, "ada sees bob", "--view", "walk", "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["look", str(plain), "--view", "walk", "--out", str(folder / "no.svg")]) == 2
    assert "record them with `regard look RUN INPUT --walk" in capsys.readouterr().err
    assert not (folder / "no.svg").exists()


def test_a_figure_of_several_inputs_says_which_it_shows(folder, tmp_path, capsys):
    look, texts = ["look", str(folder / "run")], ["ada sees bob", "bob sees ada"]
    for sample in (0, 1):
        out = tmp_path / f"{sample}.svg"
        assert main([*look, *texts, "--sample", str(sample), "--out", str(out)]) == 0
        notice = f"{out} shows input {sample} of 2; --out FOLDER shows all"
        assert notice in capsys.readouterr().err
        assert texts[sample] in out.read_text(encoding="utf-8")
    assert main([*look, texts[0], "--out", str(tmp_path / "one.svg")]) == 0
    assert "shows input" not in capsys.readouterr().err


def test_a_folder_gets_a_figure_of_each_input(folder, tmp_path, capsys):
    look, out = ["look", str(folder / "run"), "ada sees bob", "bob sees ada"], tmp_path / "figures"
    assert main([*look, "--out", str(out)]) == 0
    files = [out / "0-ada-sees-bob.png", out / "1-bob-sees-ada.png"]
    assert sorted(out.iterdir()) == files
    assert capsys.readouterr().out.splitlines()[-2:] == [str(file) for file in files]
    one = tmp_path / "one.png"
    assert main([*look, "--sample", "1", "--out", str(one)]) == 0
    assert one.read_bytes() == files[1].read_bytes() != files[0].read_bytes()
    files[0].unlink()
    assert main([*look, "--out", str(out)]) == 2
    assert "1-bob-sees-ada.png already exists" in capsys.readouterr().err
    assert list(out.iterdir()) == files[1:]
    assert main([*look, "--out", str(out), "--force"]) == 0
    assert sorted(out.iterdir()) == files
