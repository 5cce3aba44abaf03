"""Inputs of a trained run and their origin: texts, files, rows of a table, items of a folder."""

from collections.abc import Mapping
from typing import Any, NamedTuple

TABLES = (".tsv", ".tab", ".csv", ".jsonl", ".ndjson", ".json", ".parquet")
"""Suffixes of files of rows."""


class Input(NamedTuple):
    """Input as `TrainedRun.predict` takes it, and where it is from."""

    value: Any
    file: str | None = None
    """File of the input, or that has it in one of its lines; `-` for standard input."""
    line: int | None = None
    """Line or row of the file, from 1."""
    column: str = ""
    """Name of its column, if it is in a table."""
    columns: Mapping[str, Any] = {}
    """All columns of its row."""
    problem: str = ""
    """Reason why it cannot be read, for inputs that are skipped."""
    folder: str = ""
    """Folder or archive to which the name of the file is relative; empty: the working folder."""

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
