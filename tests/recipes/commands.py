"""Commands in tests: the words of the first text, and further words."""

import json
from typing import Any

from regard.cli.main import main


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
