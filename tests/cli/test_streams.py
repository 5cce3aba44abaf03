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


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_a_text_is_written_to_a_pipe_in_utf_8(run, encoding, monkeypatch) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert main(["predict", str(run), "caf\u00e9 \u2603", "--json"]) == 0
    assert "caf\u00e9 \u2603".encode() in out.buffer.getvalue()
    assert main(["predict", str(run), "--caf\u00e9-\u2603", "3"]) == 2
    err.flush()
    assert "--caf\u00e9-\u2603".encode() in err.buffer.getvalue()


def test_a_text_that_a_terminal_cannot_show_is_refused(run, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal(io.BytesIO(), encoding="latin-1"))
    assert main(["predict", str(run), "\u4f60", "--json", "--quiet"]) == 2
    assert r"'latin-1' codec can't encode character '\u4f60'" in capsys.readouterr().err
