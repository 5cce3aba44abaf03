"""Standard streams that are closed, full, or of another encoding."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from regard.cli.main import main


def shell(line: str) -> subprocess.CompletedProcess[str]:
    words = ["bash", "-c", f"{sys.executable} -m regard {line}"]
    return subprocess.run(words, check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("line", "code", "out", "err"),
    [
        ("recipes <&- >&- 2>&-", 0, "", ""),
        ("--version 2>&-", 0, "regard ", ""),
        ("predict nowhere x 2>&-", 2, "", ""),
        ("--version >/dev/full", 2, "", "regard: [Errno 28] No space left on device\n"),
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


ENCODINGS = {
    ("ascii", "caf\u00e9"): r"'ascii' codec can't encode character '\xe9'",
    ("latin-1", "\u4f60"): r"'latin-1' codec can't encode character '\u4f60'",
    ("utf-8", "caf\u00e9"): "",
}


@pytest.mark.parametrize(("encoding", "text"), ENCODINGS)
def test_a_text_is_written_as_it_is_or_refused(run, encoding, text, monkeypatch, capsys) -> None:
    message, stream = ENCODINGS[encoding, text], io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    code = main(["predict", str(run), text, "--json", "--quiet"])
    assert code == (2 if message else 0)
    assert message in capsys.readouterr().err
    assert (text.encode() in stream.buffer.getvalue()) == (not message)
