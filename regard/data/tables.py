"""Tables with a header, one row a line: CSV, UTF-8, also with .gz."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from regard.data.lines import not_utf8, read_lines
from regard.errors import UserError

__all__ = ["read_table"]


def read_table(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Where each row is, for messages, and its cells by the names of their columns; empty lines are left out.

    A cell in quotes may hold line ends.

    Raises: UserError naming the file and the line if it is not UTF-8 or no CSV, the header lacks one of `columns` or
            names one twice, or a row has more or fewer.
    """
    rows = _rows(path)
    _, header = next(rows)
    header = [name.strip().lower() for name in header]
    if any(name not in header for name in columns):
        raise UserError(f"{path}, line 1: expected a header with {','.join(columns)}, got {','.join(header)[:80]!r}.")
    twice = [name for name in header if name and header.count(name) > 1]
    if twice:
        raise UserError(f"{path}, line 1: the header names the column {twice[0][:60]!r} twice.")
    for number, row in rows:
        where = f"{path}, line {number}"
        if row and len(row) != len(header):
            raise UserError(f"{where}: expected {len(header)} columns, got {len(row)}.")
        if row:
            yield where, {name: cell.strip() for name, cell in zip(header, row, strict=True)}


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The line that each row begins in, and its cells."""
    reader = csv.reader(_texts(path), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(f"{path}, line {number}: no row of a CSV file ({error}).") from None
        yield number, row


def _texts(path: Path) -> Iterator[str]:
    for number, line in enumerate(read_lines(path), start=1):
        try:
            text = line.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}, line {number}: {not_utf8(error)}.") from None
        if "\r" in text or "\0" in text:
            what = "carriage return" if "\r" in text else "null character"
            raise UserError(f"{path}, line {number}: holds a {what}; expected text, its lines ended by LF or CR LF.")
        yield text + "\n"
