"""Errors: one line on standard error, an exit code, and no control characters sent to a
terminal."""

import lzma
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from regard.cli.main import main
from regard.cli.notices import print_notice


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model: {core: {layrs: 3}}", "model.core.layrs is not a setting"),
        ("model: {core: {layers: 0}}", "model.core.layers must be from 1 to 1,000, got 0"),
        ("model: [", "while parsing a flow node"),
        ("data: 2001-01-01", "data must hold settings by name, got '2001-01-01'"),
        ("threads: 1", "threads is not a setting"),
    ],
)
def test_config_file_with_a_mistake_is_named(
    tmp_path: Path, content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(content, encoding="utf-8")
    assert main(["train", "dates", "--config", str(file), "--print-config"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"regard: {file}: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            RuntimeError("of its own"),
            70,
            "RuntimeError: of its own -- this is a defect of regard: please report it",
        ),
        (
            RecursionError("maximum depth"),
            70,
            "RecursionError: maximum depth -- this is a defect of regard",
        ),
        (KeyError("x\x1b[2J"), 70, r"KeyError: 'x\x1b[2J' -- this is a defect of regard"),
        (
            type("PanicException", (BaseException,), {})("in Rust"),
            70,
            "PanicException: in Rust -- this is a defect",
        ),
        (MemoryError(), 2, "not enough memory: an allocation failed"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            2,
            "not enough memory: [enforce",
        ),
        (ValueError(), 2, "ValueError"),
        (OSError(28, "No space left on device", "a/b"), 2, "a/b: No space left on device"),
    ],
)
def test_any_error_ends_in_one_line(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fail = Mock(side_effect=error)  # raises in a file of Python
    monkeypatch.setattr("regard.cli.main._dispatch", fail)
    assert main(["train"]) == code
    err = capsys.readouterr().err
    assert err.startswith(f"regard: {message}")
    assert err.count("\n") == 1
    monkeypatch.setenv("REGARD_TRACEBACK", "1")
    assert main(["train"]) == code
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize("code", ["items.items", "torch.ones(2) @ torch.ones(3)"])
def test_error_of_own_code_shows_the_traceback(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"import torch\ndef run(items):\n    return {code}\n", encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(encoding="utf-8"), file, "exec"), names)
    monkeypatch.setattr("regard.cli.main._dispatch", names["run"])
    with pytest.raises((AttributeError, RuntimeError)):
        main(["train"])


def test_error_of_a_library_outside_the_environment_is_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "site-packages" / "library.py"  # as of pip install --user
    file.parent.mkdir()
    file.write_text("def run(items):\n    return items.items\n", encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(encoding="utf-8"), file, "exec"), names)
    monkeypatch.setattr("regard.cli.main._dispatch", Mock(side_effect=names["run"]))
    assert main(["train"]) == 70
    assert "a defect of regard" in capsys.readouterr().err


def test_long_message_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["x" * 5000], ["train", "y" * 5000], ["train", "dates", "--" + "z" * 5000]):
        assert main(words) == 2
        assert len(capsys.readouterr().err) < 1200


def test_compiled_code_writes_no_control_sequence_at_exit() -> None:
    code = (
        "from regard.cli.main import main\nmain(['--version'])\n"
        "import colorama.initialise\nfrom numba.core.errors import termcolor\n"
        "termcolor().errmsg('')\nprint(colorama.initialise.atexit_done)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "False"


def test_outputs_are_escaped_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(_words: list[str]) -> int:
        print("a\x1b[31mb\tc")
        return 0

    monkeypatch.setattr("regard.cli.main._dispatch", answer)
    assert main(["predict"]) == 0
    assert capsys.readouterr().out == "a\x1b[31mb\tc\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["predict"]) == 0
    assert capsys.readouterr().out == "a\\x1b[31mb\tc\n"


def test_notices_and_warnings_are_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warn(_words: list[str]) -> int:
        print_notice("line 1\nlabel \x1b[2J")
        warnings.simplefilter("always")  # pytest turns warnings into errors
        warnings.warn("bad \x1b]0;title\x07", stacklevel=1)
        return 0

    monkeypatch.setattr("regard.cli.main._dispatch", warn)
    assert main(["train"]) == 0
    assert (
        capsys.readouterr().err
        == "line 1\nlabel \\x1b[2J\nregard: warning: bad \\x1b]0;title\\x07\n"
    )


def test_invalid_settings_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        "--threads 100000",
        "--train.device meta",
        "--train.eps 1e-308",
        "--decode.max-ratio 1e308",
    ):
        assert main(["train", "dates", *words.split(), "--run", str(tmp_path / "run")]) == 2
    assert list(tmp_path.iterdir()) == []


def test_line_that_is_too_long_is_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "long.txt"
    file.write_bytes(b"stop\n" + b"x" * 1_000_001)
    for command in ("predict", "look"):
        assert (
            main(
                [
                    command,
                    str(run),
                    str(file),
                    *(["--out", str(tmp_path / "a.html")] if command == "look" else []),
                ]
            )
            == 2
        )
        assert f"{file}, line 2: has more than 1,000,000 bytes" in capsys.readouterr().err


def test_input_that_is_a_device_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("predict", "look"):
        assert main([command, str(run), "/dev/zero"]) == 2
        assert "/dev/zero: is a device or socket" in capsys.readouterr().err


def test_predict_reads_the_lines_of_files_pipes_and_packed_files_alike(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = b"stop\npots\n"
    (tmp_path / "plain").write_bytes(lines)
    (tmp_path / "packed.xz").write_bytes(lzma.compress(lines))
    ends = os.pipe()
    os.write(ends[1], lines)
    os.close(ends[1])
    answers = []
    for name in (str(tmp_path / "plain"), str(tmp_path / "packed.xz"), f"/dev/fd/{ends[0]}"):
        assert main(["predict", str(run), name]) == 0
        answers.append(capsys.readouterr().out)
    os.close(ends[0])
    assert answers[0] == answers[1] == answers[2]
    assert answers[0].count("\n") == 2


@pytest.mark.parametrize(
    "words",
    [["look", "stop", "model.safetensors"], ["look", "stop", "x.html"]],
)
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_output_among_the_files_of_a_run_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], words: list[str], force: list[str]
) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    command, *options, name = words
    assert main([command, str(run), *options, "--out", str(run / name), *force]) == 2
    assert f"{name} would lie among the files of the run in" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
