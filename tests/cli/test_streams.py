"""Standard streams that are closed or full."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from regard.cli.main import main
from regard.system.terminal import MessageStream


def shell(line: str) -> subprocess.CompletedProcess[str]:
    words = ["bash", "-c", f"{sys.executable} -m regard {line}"]
    return subprocess.run(words, check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("line", "code", "out", "err"),
    [
        ("--version >&-", 141, "", ""),
        ("recipes <&- >&- 2>&-", 141, "", ""),
        ("--version 2>&-", 0, "regard ", ""),
        ("predict nowhere x 2>&-", 2, "", ""),
        ("--version 2>/dev/full", 0, "regard ", ""),
        ("predict nowhere x 2>/dev/full", 2, "", ""),
        ("--version >/dev/full", 2, "", "regard: standard output: No space left on device\n"),
    ],
)
def test_stream_that_is_closed_or_full_has_the_stated_exit_code(
    line: str, code: int, out: str, err: str
) -> None:
    result = shell(line)
    assert result.returncode == code
    assert result.stdout.startswith(out)
    assert bool(result.stdout) == bool(out)
    assert result.stderr.startswith(err)
    assert bool(result.stderr) == bool(err)


def test_closed_standard_input_is_reported(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    for words in ([], ["-"]):
        assert main(["predict", str(run), *words]) == 2
        assert "standard input is closed" in capsys.readouterr().err
    assert main(["predict", str(run), "stop"]) == 0


def test_file_that_is_opened_later_does_not_become_a_closed_standard_stream() -> None:
    code = (
        "import os, sys; from regard.system.terminal import usable_streams\n"
        "with usable_streams(): file = open(sys.argv[1], 'w'); sys.exit(file.fileno() < 3)"
    )
    words = [sys.executable, "-c", code, os.devnull]
    assert (
        subprocess.run(["bash", "-c", '"$@" <&- >&- 2>&-', "bash", *words], check=False).returncode
        == 0
    )


def test_message_after_a_lost_one_is_not_an_error() -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    stream = MessageStream(Full())
    for _ in range(2):
        assert stream.write("text") == 4
    assert not stream.isatty()
