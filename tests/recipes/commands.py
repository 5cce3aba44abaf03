"""Commands in tests: the words of the first text, and further words."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from regard.cli.main import main
from regard.recipes.registry import RECIPES


def command(text: str, *words: Any, code: int = 0) -> None:
    """Run a command, which must end with this exit code."""
    assert main([*text.split(), *map(str, words)]) == code


def printed(capsys: Any, text: str, *words: Any) -> str:
    """Return what a command prints."""
    capsys.readouterr()
    command(text, *words)
    return capsys.readouterr().out


def printed_json(capsys: Any, text: str, *words: Any) -> Any:
    """Return what a command prints with --json."""
    return json.loads(printed(capsys, text, *words, "--json"))


def failure(capsys: Any, text: str, *words: Any) -> str:
    """Return the message of a command that fails."""
    capsys.readouterr()
    command(text, *words, code=2)
    return capsys.readouterr().err


def report(run: Any) -> dict[str, Any]:
    """Return the test scores in the report of a run."""
    return json.loads((run / "report.json").read_text())["test"]


def run_file(path: Path, text: str, *words: str) -> int:
    """Run a file of an own recipe as a program in this process; return its exit code."""
    argv, places = [path.name, *text.split(), *words], [str(path.parent), *sys.path]
    with (
        patch.object(sys, "argv", argv),
        patch.object(sys, "path", places),
        patch.dict(RECIPES),
        pytest.raises(SystemExit) as end,
    ):
        runpy.run_path(str(path), run_name="__main__")
    return int(end.value.code)
