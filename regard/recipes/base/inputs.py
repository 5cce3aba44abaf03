"""Inputs of a trained run and their origin: texts, files, rows of a table, items of a folder."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import UserError

TABLES = (".tsv", ".tab", ".csv", ".jsonl", ".ndjson", ".json", ".parquet")
"""Suffixes of files of rows."""


class Input(NamedTuple):
    """Input as `TrainedRun.predict` takes it, and where it is from."""

    value: Any
    file: str | None = None
    """File of the input, or that has it in one of its lines; `-` for standard input."""
    line: int | None = None
    """Line or row of the file, from 1."""
    problem: str = ""
    """Reason why it cannot be read, for inputs that are skipped."""

    @property
    def source(self) -> str | None:
        """The input as text; None if it is a file or an array."""
        if isinstance(self.value, str):
            return None if self.value == self.file and self.line is None else self.value
        is_list = isinstance(self.value, list | tuple)
        is_words = is_list and all(isinstance(word, str) for word in self.value)
        return " ".join(self.value) if is_words else None

    def describe(self) -> dict[str, Any]:
        parts = {"file": self.file, "line": self.line, "source": self.source}
        return {name: part for name, part in parts.items() if part is not None}


class Prompt(NamedTuple):
    """A text, its ids without EOS, and the number of the input, which seeds its sampling."""

    text: str
    ids: list[int]
    number: int


def list_files(folder: Path, suffixes: Sequence[str], notify: Callable[[str], None]) -> list[Input]:
    """Return files of these suffixes in a folder and subfolders, by name; `notify` counts others.

    Hidden files are ignored. Raises UserError if no file is left.
    """
    found: list[Input] = []
    others: list[str] = []
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            path = os.path.join(root, name)
            if name.lower().endswith(tuple(suffixes)):
                found.append(Input(path, path))
            else:
                others.append(path)
    if not found:
        raise UserError(f"{folder}: contains no file that can be read ({', '.join(suffixes)})")
    if others:
        notify(f"{folder}: skipped {len(others):,} other files; first: {others[0]}")
    return found
