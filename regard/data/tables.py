"""Tables with a header, one row a line: CSV, UTF-8, also with .gz."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from regard.data.lines import read_lines
from regard.errors import UserError

__all__ = ["read_table"]


def read_table(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Where each row is, for messages, and its cells by the names of their columns; empty lines are left out.

    Raises: UserError naming the file and the line if the header lacks one of `columns`, or a row has more or fewer.
    """
    rows = csv.reader(line.decode("utf-8", "replace") for line in read_lines(path))
    header = [name.strip().lower() for name in next(rows)]
    if any(name not in header for name in columns):
        raise UserError(f"{path}, line 1: expected a header with {','.join(columns)}, got {','.join(header)[:80]!r}.")
    for number, row in enumerate(rows, start=2):
        where = f"{path}, line {number}"
        if row and len(row) != len(header):
            raise UserError(f"{where}: expected {len(header)} columns, got {len(row)}.")
        if row:
            yield where, {name: cell.strip() for name, cell in zip(header, row, strict=True)}
