"""Inputs of a trained run, and where they are from: texts, files, rows of a table, items of a folder."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.named_files import NamedFiles
from regard.errors import UserError

TABLES = (".tsv", ".tab", ".csv", ".jsonl", ".ndjson", ".json")
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
        is_words = isinstance(self.value, list | tuple) and all(isinstance(word, str) for word in self.value)
        return " ".join(self.value) if is_words else None

    def describe(self) -> dict[str, Any]:
        """Return file, line and source, as far as there are, for JSON."""
        parts = {"file": self.file, "line": self.line, "source": self.source}
        return {name: part for name, part in parts.items() if part is not None}


def resolve_input(files: NamedFiles, name: str, where: str, problem: str = "") -> Input:
    """Return the file that a list names as an input, with a problem if there is none.

    where:   location of the name in the list, for messages.
    problem: reason why the list has no name there.
    """
    try:
        file = str(files.path / name if problem else files.resolve(name, where))
    except UserError as error:
        file, problem = str(files.path / name), str(error)
    return Input(file, file, problem=problem)


def list_files(folder: Path, suffixes: Sequence[str]) -> Iterator[Input]:
    """Yield the files of these suffixes in a folder and its subfolders, by name; hidden ones are left out.

    Raises: UserError if there is none.
    """
    count = 0
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and name.lower().endswith(tuple(suffixes)):
                count += 1
                yield Input(path := os.path.join(root, name), path)
    if not count:
        raise UserError(f"{folder}: contains no file that can be read ({', '.join(suffixes)})")
