"""`regard look RUN --model`: the model as text or as a figure, without an input."""

from pathlib import Path

from regard.cli.main import main


def test_look_prints_the_model_of_a_run_and_takes_no_input(run: Path, capsys, tmp_path):
    assert main(["look", str(run), "--model"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split()[:2] == ["input", "source"]
    assert "h^Enc  (batch, source, " in printed[2]
    assert printed[-1].startswith("decoder")
    assert main(["look", str(run), "--model", "--out", str(tmp_path / "model.pdf")]) == 0
    assert (tmp_path / "model.pdf").read_bytes().startswith(b"%PDF")
    capsys.readouterr()
    for words, message in (
        (["--out", "m.html"], "a figure of the model needs --out FILE with .png, .svg, .pdf"),
        (["--out", str(tmp_path / "model.pdf")], "already exists"),
    ):
        assert main(["look", str(run), *words, "--model"]) == 2
        assert message in capsys.readouterr().err
    assert main(["look", "x.safetensors", "--model"]) == 2
    assert "--model need a RUN, not a saved capture" in capsys.readouterr().err
