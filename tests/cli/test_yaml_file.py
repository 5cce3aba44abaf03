"""Settings in YAML files: scalars are text, which is read as on the command line."""

from pathlib import Path

import pytest

from regard.cli.main import main
from regard.cli.train import read_settings
from regard.errors import UserError


def test_file_is_read_as_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    content = (
        "train: {steps: 1_000, lr: 1e-3, tensorboard: no, minutes: null}\n"
        "data: {locales: [nl, no]}\nmodel: {core: {name: recurrent, hidden: 010}}\n"
    )
    file.write_text(content, encoding="utf-8")
    assert main(["train", "dates", "--config", str(file), "--print-config"]) == 0
    printed = capsys.readouterr().out
    for line in ("steps: 1000", "lr: 0.001", "board: false", "s: null", "- 'no'", "hidden: 10"):
        assert line in printed
    file.write_text(printed, encoding="utf-8")
    assert main(["train", "dates", "--config", str(file), "--print-config"]) == 0
    assert capsys.readouterr().out == printed


def test_nothing_that_a_file_names_is_called(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("model: !!python/object/apply:os.system [ls]", encoding="utf-8")
    assert read_settings(file) == {"model": ["ls"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"model: [", "while parsing a flow node.*line 1, column 9"),
        (b"- 1", "must hold settings by name, got list"),
        (b"a: \xff", "'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_file_that_cannot_be_read_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"a\.yaml: {message}"):
        read_settings(file)
