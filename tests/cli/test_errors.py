"""Errors: one line on standard error, an exit code, no control characters for a terminal."""

import lzma
import os
import subprocess
import sys
import warnings
from pathlib import Path
from unittest.mock import Mock

import pytest

from regard.cli.main import main
from regard.system.verbosity import print_notice


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model: {core: {layrs: 3}}", "model.core.layrs is not a setting"),
        ("model: {core: {layers: 0}}", "model.core.layers must be from 1 to 1,000, got 0"),
        ("model: [", "while parsing a flow node"),
        ("data: 2001-01-01", "data must hold settings by name, got '2001-01-01'"),
        ("threads: 1", "threads is not a setting"),
        ("format_version: 1", "is the record of a run; regard train --run"),
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
    ("error", "message"),
    [
        (MemoryError(), "not enough memory: an allocation failed"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "not enough"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED in cublasCreate"), "not enough"),
        (ValueError(), "ValueError"),
        (ValueError("a\nb\x1b[2J" + "c" * 5000), "a b\\x1b[2Jcccc"),
        (OSError(28, "No space left on device", "a/b"), "a/b: No space left on device"),
    ],
)
def test_usual_error_is_one_line(
    error: BaseException,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("regard.cli.main._dispatch", Mock(side_effect=error))
    assert main(["train"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"regard: {message}")
    assert err.count("\n") == 1
    assert len(err) < 1200
    assert main(["train", "-v"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("of its own"), KeyError("x")])
def test_any_other_error_is_raised(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.cli.main._dispatch", Mock(side_effect=error))
    with pytest.raises(type(error)):
        main(["train"])


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
