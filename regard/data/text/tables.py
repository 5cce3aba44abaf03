"""CSV files: UTF-8, separated by commas, semicolons (Excel in many countries) or tabs, also
compressed."""

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path

from regard.data.text.lines import describe_decode_error, read_lines
from regard.errors import UserError

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
DECIMAL_COMMA = re.compile(r"\s*[-+]?\d*,\d+([eE][-+]?\d+)?\s*")
"""Number with a decimal comma."""
_STATED = re.compile(rb"sep=([,;\t])\r?", re.IGNORECASE)
"""First line of a CSV for Excel, which states the separator."""
_TRIED = 100
"""Number of rows that are tried to choose the separator if the first row contains several."""


def read_rows(path: Path) -> tuple[str, Iterator[tuple[int, list[str]]]]:
    """Return the separator, and for each row the number of its first line and its cells. Empty rows
    are skipped.

    The separator is the one that a first line `sep=;` states (Excel), or the one in the first row.
    If that has several, it is the one for which most of the first rows, up to 100, have as many
    cells as the first; not the comma, if all commas are those of numbers.

    Raises:  UserError naming the file and the line if it is not UTF-8 or not CSV, or if the
             separator is ambiguous.
    """
    lines = read_lines(path)
    stated = _STATED.fullmatch(lines[0])
    if stated:
        lines[0] = b""  # keeps the numbers of the lines
    separator = stated[1].decode() if stated else _separator(path, lines)
    return separator, (
        (number, row) for number, row in _rows(path, lines, separator) if any(map(str.strip, row))
    )


def _separator(path: Path, lines: Sequence[bytes]) -> str:
    widths = {sign: list(islice(_row_widths(path, lines, sign), _TRIED)) for sign in _SEPARATORS}
    candidates = [sign for sign, row_widths in widths.items() if row_widths and row_widths[0] > 1]
    if len(candidates) < 2:
        return candidates[0] if candidates else ","
    equal = {
        sign: sum(1 for _ in takewhile(widths[sign][0].__eq__, widths[sign])) for sign in candidates
    }
    best = [sign for sign in candidates if equal[sign] == max(equal.values())]
    if len(best) > 1 and "," in best:
        best = [
            sign for sign in best if sign != "," and _has_decimal_commas(path, lines, sign)
        ] or best
    if len(best) > 1:
        names = " or ".join(_SEPARATORS[sign] for sign in candidates)
        raise UserError(
            f"{path}: cannot determine whether {names} separate the cells; put cells that contain "
            f"them in quotes, or "
            "save the file as .tsv, separated by tabs."
        )
    return best[0]


def _has_decimal_commas(path: Path, lines: Sequence[bytes], separator: str) -> bool:
    """Return True if all commas in the first rows are decimal commas of numbers between
    separators."""
    rows = list(islice(_rows(path, lines, separator), _TRIED))
    return all(DECIMAL_COMMA.fullmatch(cell) for _, row in rows for cell in row if "," in cell)


def _row_widths(path: Path, lines: Sequence[bytes], separator: str) -> Iterator[int]:
    """Yield the number of cells of each row, up to the first invalid row."""
    try:
        for _, row in _rows(path, lines, separator):
            if any(map(str.strip, row)):
                yield len(row)
    except UserError:
        return


def _rows(path: Path, lines: Sequence[bytes], separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line of each row, and its cells."""
    reader = csv.reader(_texts(path, lines), strict=True, delimiter=separator)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(f"{path}, line {number}: not a valid row of CSV ({error}).") from None
        yield number, row


def _texts(path: Path, lines: Sequence[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}, line {number}: {describe_decode_error(error)}.") from None
        if "\r" in text or "\0" in text:
            character = "carriage return" if "\r" in text else "null character"
            raise UserError(
                f"{path}, line {number}: contains a {character}; expected text with line ends LF "
                f"or CR LF."
            )
        yield text + "\n"
