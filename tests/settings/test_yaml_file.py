"""Settings in YAML files: values are the same in YAML 1.1 and 1.2, or text."""

from pathlib import Path
from typing import Any

import pytest

from regard.cli.main import main
from regard.errors import UserError
from regard.settings.yaml_file import read_settings

SAME = {
    "8": 8,
    "-0": 0,
    "0x1F": 31,
    "1.5": 1.5,
    ".5": 0.5,
    "1.": 1.0,
    "2.5e-3": 0.0025,
    "true": True,
    "False": False,
    "~": None,
    "": None,
    "null": None,
    ".inf": float("inf"),
    "'010'": "010",
    "text": "text",
}
TEXT = [
    "1:30",
    "-1:30",
    "1:30.5",
    "1_000",
    "0b11",
    "0o17",
    "-0x10",
    "1e-3",
    "yes",
    "No",
    "on",
    "OFF",
    "2001-01-01",
]


def read(tmp_path: Path, value: str) -> Any:
    file = tmp_path / "a.yaml"
    file.write_text(f"other: 1\nvalue: {value}\n", encoding="utf-8")
    return read_settings(file).settings["value"]


@pytest.mark.parametrize("value", SAME)
def test_scalar_that_all_versions_of_yaml_read_alike_is_that_value(
    value: str, tmp_path: Path
) -> None:
    value_read = read(tmp_path, value)
    assert value_read == SAME[value]
    assert type(value_read) is type(SAME[value])


@pytest.mark.parametrize("value", TEXT)
def test_scalar_that_versions_of_yaml_read_differently_is_text(value: str, tmp_path: Path) -> None:
    assert read(tmp_path, value) == value
    assert read(tmp_path, f"[{value}]") == [value]


@pytest.mark.parametrize("value", ["010", "-07", "0_10", "08", "00"])
def test_whole_number_with_a_leading_zero_is_refused(value: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.yaml, line 2: .* has a leading zero"):
        read(tmp_path, value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train: {steps: 010}", "'010' has a leading zero"),
        ("train: {warmup: 1:30}", "train.warmup must be a whole number, got '1:30'"),
        ("train: {warmup: !!int 1:30}", "train.warmup must be a whole number, got '1:30'"),
        ("train: {lr: !!float 1:30}", "train.lr must be a number, got '1:30'"),
    ],
)
def test_setting_is_never_another_number(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(line, encoding="utf-8")
    assert main(["train", "dates", "--config", str(tmp_path / "a.yaml"), "--print-config"]) == 2
    assert message in capsys.readouterr().err


def test_text_of_a_file_is_read_as_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = "train: {steps: 1_000, lr: 1e-3, tensorboard: no}\ndata: {locales: [nl, no]}\n"
    (tmp_path / "a.yaml").write_text(content, encoding="utf-8")
    assert main(["train", "dates", "--config", str(tmp_path / "a.yaml"), "--print-config"]) == 0
    printed = capsys.readouterr().out
    for line in ("steps: 1000", "lr: 0.001", "tensorboard: false", "- 'no'"):
        assert line in printed
