"""Rows of CSV: UTF-8, separated by commas, semicolons (as Excel writes in many countries) or tabs, also packed."""

import csv
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path

from regard.data.lines import not_utf8, read_lines
from regard.errors import UserError

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_TRIED = 100
"""Rows that decide between separators where the first row holds several."""


def read_table(
    path: Path, columns: Sequence[str], *, numeric: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """Where each row is, for messages, and its cells by the names of their columns; empty rows are left out.

    columns:  that must be there; "duration|offset" is one of the two. A cell in quotes may hold line ends.
    numeric:  columns in which a comma is the decimal point, if semicolons separate the cells.

    Raises: UserError naming the file and the line if it is not UTF-8 or no CSV, the header lacks one of `columns` or
            names one twice, or a row has more or fewer.
    """
    separator, rows = read_rows(path)
    _, header = next(rows, (1, []))
    header = [name.strip().lower() for name in header]
    if not all(set(name.split("|")) & set(header) for name in columns):
        wanted = ",".join(columns).replace("|", " or ")
        raise UserError(f"{path}, line 1: expected a header with {wanted}, got {','.join(header)[:80]!r}.")
    twice = [name for name in header if name and header.count(name) > 1]
    if twice:
        raise UserError(f"{path}, line 1: the header names the column {twice[0][:60]!r} twice.")
    for number, row in rows:
        where = f"{path}, line {number}"
        if len(row) != len(header):
            raise UserError(f"{where}: expected {len(header)} columns, got {len(row)}.")
        cells = {name: cell.strip() for name, cell in zip(header, row, strict=True)}
        if separator == ";":
            cells |= {name: cells[name].replace(",", ".") for name in numeric if cells.get(name, "").count(",") == 1}
        yield where, cells


def read_rows(path: Path) -> tuple[str, Iterator[tuple[int, list[str]]]]:
    """What separates the cells; the line that each row begins in, and its cells. Rows of empty cells are left out.

    The separator is the one that the first row holds. If there are several, it is the one that gives the most of the
    first rows, up to 100, as many cells as the first.

    Raises:  UserError naming the file and the line if it is not UTF-8 or no CSV, or if no one separator is right.
    """
    lines = read_lines(path)
    separator = _separator(path, lines)
    return separator, ((number, row) for number, row in _rows(path, lines, separator) if any(map(str.strip, row)))


def _separator(path: Path, lines: Sequence[bytes]) -> str:
    found = {sign: list(islice(_shapes(path, lines, sign), _TRIED)) for sign in _SEPARATORS}
    there = [sign for sign, shapes in found.items() if shapes and shapes[0] > 1]
    if len(there) < 2:
        return there[0] if there else ","
    even = {sign: sum(1 for _ in takewhile(found[sign][0].__eq__, found[sign])) for sign in there}
    best = [sign for sign in there if even[sign] == max(even.values())]
    if len(best) > 1:
        names = " or ".join(_SEPARATORS[sign] for sign in there)
        raise UserError(
            f"{path}: cannot tell whether {names} separate the cells; put cells that hold them in quotes, or save it "
            "as .tsv, separated by tabs."
        )
    return best[0]


def _shapes(path: Path, lines: Sequence[bytes], separator: str) -> Iterator[int]:
    """How many cells each row has, up to the first that is no row."""
    try:
        for _, row in _rows(path, lines, separator):
            if any(map(str.strip, row)):
                yield len(row)
    except UserError:
        return


def _rows(path: Path, lines: Sequence[bytes], separator: str) -> Iterator[tuple[int, list[str]]]:
    """The line that each row begins in, and its cells."""
    reader = csv.reader(_texts(path, lines), strict=True, delimiter=separator)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(f"{path}, line {number}: no row of a CSV file ({error}).") from None
        yield number, row


def _texts(path: Path, lines: Sequence[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}, line {number}: {not_utf8(error)}.") from None
        if "\r" in text or "\0" in text:
            what = "carriage return" if "\r" in text else "null character"
            raise UserError(f"{path}, line {number}: holds a {what}; expected text, its lines ended by LF or CR LF.")
        yield text + "\n"
