"""Header and columns of a table: TSV and CSV, with columns by name or number.

The setting `header` states whether the first row is a header. With auto it is one under these
conditions:

    a column is chosen by name
    each column has its expected name in the row, in any case: at the number that was chosen for it,
    or else anywhere the targets are numbers, no cell of the row is one, and a cell of the next row
    is

Another row whose cells are typical names of columns is refused, since it may be either. So is one
above labels whose cells are short names, or 0 and 1, if the first is the expected name of the
column, or if its label is none of the next 20 or more rows, in which labels repeat; of other cells,
the latter is a warning. A column that is not chosen is the one of its expected name in the header,
or the one in its position; if there are more columns, it must be chosen.
"""

import math
import re
import shlex
import warnings
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from regard.data.config import Header
from regard.data.text.numbers import parse_number
from regard.errors import UserError, did_you_mean

_COLUMN_NAMES = re.compile(
    r"source|target|src|tgt|trg|texts?|labels?|input|output|sentences?|translation|reviews?|sentiment|category|class|"
    r"files?|file_?names?|file_?paths?|paths?|images?|image_?names?|image_?paths?|captions?|value|score|rating|stars|y|"
    r"english|german|french|spanish|italian|portuguese|dutch|russian|chinese|japanese|korean|arabic|turkish|polish|"
    r"en|de|fr|es|it|pt|nl|ru|zh|ja|ko|ar|tr|pl|cs|sv|da|fi|el|hu|ro|uk|he|hi|vi"
)
"""Typical names of columns, to recognize what may be a header."""
_WORD = re.compile(r"[^\W\d][\w-]{0,30}")
_NAME = re.compile(r"(?=.{1,40}$)[^\W\d][\w-]*(?: [\w-]+){0,2}")
"""Short name: at most three words."""
_MOST_SHOWN = 60
_LEAST_ROWS = 20
"""Number of rows below which a label that does not occur in others says nothing."""


class Columns(NamedTuple):
    """Columns of a file: their expected names, and those chosen, by number from 1 or by name in the
    header."""

    names: tuple[str, ...]
    chosen: tuple[int | str | None, ...] = ()
    """One for each name; None is the column of that name in a header, or the one in that
    position."""
    header: Header = "auto"
    """Header row of TSV and CSV."""
    has_options: bool = False
    """True if the options --data.NAME-column choose the columns."""
    is_open: bool = False
    """True if rows may have other columns as well, as many as the first row, also without a
    header."""
    most: int | None = None
    """Largest number of columns of rows that have neither a header nor chosen columns."""
    is_numeric: bool = False
    """True if the columns after the first hold numbers. A comma in one is the decimal point if
    semicolons separate the cells, or if there are several such columns."""

    @property
    def is_named(self) -> bool:
        """True if a column is chosen by its name in the header."""
        return any(isinstance(_column(column), str) for column in self.chosen)

    def hint(self, first: int = 1) -> str:
        """Return help on choosing some of several columns, from the number of the first, for
        messages."""
        header = f"add a header with {' and '.join(self.names)}"
        numbers = [str(number) for number in range(first, len(self.names) + first)]
        return f"use {self.options(numbers)}, or {header}" if self.has_options else header

    def option(self, index: int) -> str:
        """Return the option that chooses a column, for messages; empty if there is none."""
        return f", --data.{self.names[index]}-column" if self.has_options else ""

    def options(self, columns: Sequence[str]) -> str:
        """Return the options that choose these columns."""
        pairs = list(zip(self.names, columns, strict=True))
        chosen = {
            name: [shlex.quote(column) for other, column in pairs if other == name]
            for name in self.names
        }
        return " ".join(f"--data.{name}-column {' '.join(own)}" for name, own in chosen.items())


class Selection(NamedTuple):
    """Selected columns of a table."""

    indices: list[int]
    """Index of the column of each expected name."""
    names: tuple[str, ...]
    """Name of each column in the header, or its number."""
    is_header: bool
    """True if the first row is a header."""
    width: int
    """Number of cells of each row."""
    hint: str
    """Help on choosing columns, if the first row has more cells."""


def select_columns(
    where: str, header: list[str], below: Sequence[Sequence[str]], columns: Columns
) -> Selection:
    """Decide whether the first row is a header, and select the columns.

    where:  the first row, for messages.
    header: cells of the first row; empty for a bad row.
    below:  cells of the next rows; empty for a bad row.
    Raises: UserError if the header lacks a column, or the first row may or may not be a header.
    """
    names = columns.names
    chosen = [_column(column) for column in columns.chosen or (None,) * len(names)]
    if columns.is_named and columns.header == "no":
        shown = next(column for column in chosen if isinstance(column, str))
        raise UserError(
            f"{where}: columns must be chosen by number with --data.header no, got {shown!r}."
        )
    by_name = _find_names(header, chosen, names)
    is_known = columns.header == "auto" and (columns.is_named or None not in by_name)
    is_above = columns.header == "auto" and columns.is_numeric and _is_above_numbers(header, below)
    is_header = columns.header == "yes" or is_known or is_above
    is_default = not is_header and all(column is None for column in chosen)
    width = len(names) if (is_default and not columns.is_open) or not header else len(header)
    indices: list[int | None] = [
        _index(f"{where}{columns.option(i)}", column, header, width)
        if column is not None
        else (by_name[i] if is_header else None)
        for i, column in enumerate(chosen)
    ]
    if None in indices and width != len(names) and not is_default:
        _refuse_missing(where, header, below, indices, columns, is_header=is_header)
    selected = _fill(indices, width)
    has_more = any(header[width:])  # reported where the row is parsed
    if (
        columns.header == "auto"
        and not (is_header or columns.is_open or has_more)
        and len(header) > max(selected)
    ):
        whole = [row for row in below if len(row) > max(selected)]
        _check_data(
            where,
            *([row[index] for index in selected] for row in (header, *whole)),
            columns=columns,
        )
    if columns.is_open and is_default:
        _check_open(where, header, below[0] if below else [], columns)
    # A single longer row is an error of its own.
    hint = _width_hint(columns, header, below) if is_default and has_more else ""
    found = tuple(header[i] if is_header and i < len(header) else str(i + 1) for i in selected)
    return Selection(selected, found, is_header, width, hint)


def _is_above_numbers(header: list[str], below: Sequence[Sequence[str]]) -> bool:
    """Return True if no cell of the first row is a number, and one of the second is: the first
    names columns."""
    return not numeric_columns(header) and bool(below) and bool(numeric_columns(below[0]))


def _numeric_hint(columns: Columns, header: list[str], below: Sequence[Sequence[str]]) -> str:
    """Return the option that chooses all columns of numbers, by the first row below the header."""
    if not (columns.is_numeric and columns.has_options and below):
        return ""
    names = [header[index] for index in numeric_columns(below[0]) if index < len(header)]
    return (
        f"use --data.{columns.names[-1]}-column {' '.join(names)} for all numbers; or "
        if names
        else ""
    )


def _refuse_missing(
    where: str,
    header: list[str],
    below: Sequence[Sequence[str]],
    indices: Sequence[int | None],
    columns: Columns,
    *,
    is_header: bool,
) -> NoReturn:
    """Raise UserError for the first column that is not chosen among others; suggest one that is not
    chosen."""
    names = [name for name, index in zip(columns.names, indices, strict=True) if index is None]
    if not is_header:
        raise UserError(
            f"{where}: has {len(header)} columns: choose the column of the {names[0]}, too."
        )
    free = [index for index, cell in enumerate(header) if cell and index not in indices]
    likely = _likely_columns(names, free, header, below)
    hint = "" if names[0] == columns.names[0] else _numeric_hint(columns, header, below)
    if columns.has_options and len(likely) == len(names):
        pairs = zip(names, likely, strict=True)
        hint += "use " + " ".join(
            f"--data.{name}-column {shlex.quote(header[index])}" for name, index in pairs
        )
    else:
        hint += columns.hint()
    raise UserError(
        f"{where}: no column {names[0]!r} in the header {', '.join(map(repr, header))}; {hint}."
    )


def _width_hint(columns: Columns, header: list[str], below: Sequence[Sequence[str]]) -> str:
    """Return the options for rows of more cells than columns: by name if the first row may name
    them, and by number.

    below: cells of the rows below the first.
    """
    typical = list(map(_is_typical, header))
    is_named = sum(typical) == len(columns.names)
    if columns.names[-1] == "label":
        is_named = any(typical) or all(_NAME.fullmatch(cell) for cell in header if cell)
    is_one_each = len(set(columns.names)) == len(columns.names)
    if not columns.has_options or not is_one_each or columns.header == "no" or not is_named:
        return columns.hint(first=2 if 0 in numeric_columns(header) else 1)
    likely = _likely_columns(columns.names, _candidates(columns.names, header), header, below)
    named = columns.options([header[index] for index in likely])
    numbered = columns.options([str(index + 1) for index in likely])
    return f"use {named} if the first row names the columns, and {numbered} if it is data"


def numeric_columns(cells: Sequence[str]) -> list[int]:
    """Return the indices of the cells that are numbers, also with a decimal comma."""
    numbers = [cell.strip().replace(",", ".") if cell.count(",") == 1 else cell for cell in cells]
    return [
        index for index, cell in enumerate(numbers) if parse_number(cell, most=math.inf) is not None
    ]


def _find_names(
    header: list[str], chosen: Sequence[int | str | None], names: Sequence[str]
) -> list[int | None]:
    """Return the index of the column of each name in a header, at the number that was chosen or
    else anywhere."""
    lower = [name.lower() for name in header]
    found: list[int | None] = []
    for column, name in zip(chosen, names, strict=True):
        if names.count(name) > 1:  # several columns of this name are chosen
            found.append(None)
        elif column is None:
            found.append(lower.index(name) if lower.count(name) == 1 else None)
        else:
            is_there = isinstance(column, int) and lower[column - 1 : column] == [name]
            found.append(int(column) - 1 if is_there else None)
    return found


def _fill(indices: Sequence[int | None], width: int) -> list[int]:
    """Replace None by the index in its position, or by the first other that is not taken."""
    taken = {index for index in indices if index is not None}
    filled: list[int] = []
    for position, index in enumerate(indices):
        free = (
            column for column in (position, *range(width)) if column not in taken and column < width
        )
        filled.append(next(free, position) if index is None else index)
        taken.add(filled[-1])
    return filled


def _check_data(where: str, cells: Sequence[str], *below: Sequence[str], columns: Columns) -> None:
    """Raise UserError if the cells of the first row may be names of columns; warn if they are
    unlike those below."""
    typical = [_is_typical(cell) for cell in cells]
    labels = [row[-1] for row in below]
    is_label = columns.names[-1] == "label"
    is_expected = cells[0].lower() == columns.names[0] or (
        all(typical[1:]) and _WORD.fullmatch(cells[0])
    )
    is_other = (
        len(labels) >= _LEAST_ROWS
        and cells[-1] not in labels
        and len(set(labels)) <= len(labels) / 2
    )
    is_short = all(map(_NAME.fullmatch, cells)) or list(cells) == [
        str(number) for number in range(len(cells))
    ]
    if all(typical) or (is_label and is_short and (is_expected or is_other)):
        likely = _likely_columns(columns.names, range(len(cells)), cells, below)
        can_choose = columns.has_options and not any(
            map(str.isdecimal, cells)
        )  # a number is that of a column
        named = columns.options([cells[index] for index in likely]) if can_choose else ""
        choice = f" (or choose columns: {named})" if named else ""
        shown = " and ".join(map(repr, cells))
        raise UserError(
            f"{where}: {shown} look like a header. Use --data.header yes if they name "
            f"columns{choice}, and "
            "--data.header no if this line is data."
        )
    if is_label and is_other:
        warnings.warn(
            f"{where}: the label {cells[-1][:_MOST_SHOWN]!r} is none of those of the next "
            f"{len(labels)} rows: use "
            "--data.header yes if this line is a header",
            stacklevel=2,
        )


def _check_open(where: str, cells: list[str], following: Sequence[str], columns: Columns) -> None:
    """Raise UserError if the first row, of which the first column would be read, has too many or
    seems to name them.

    following: cells of the second row.
    """
    name, named = columns.names[0], [cell for cell in cells if cell]
    # An index, as pandas writes it: numbers without a name.
    is_index = (
        columns.header == "auto" and named and not cells[0] and 0 in numeric_columns(following[:1])
    )
    is_header = len(cells) > 1 and all(map(_WORD.fullmatch, cells)) and any(map(_is_typical, cells))
    if is_index or (columns.header == "auto" and is_header):
        near = next((cell for cell in named if _is_typical(cell)), named[0])
        raise UserError(
            f"{where}: {' and '.join(map(repr, named))} look like a header without {name!r}: "
            f"choose a column, such as "
            f"--data.{name}-column {shlex.quote(near)}; --data.header no if this line is data."
        )
    if columns.most is not None and len(cells) > columns.most and any(cells[columns.most :]):
        raise UserError(
            f"{where}: expected a {name} alone or the {columns.most} columns of training, got "
            f"{len(cells)} columns; "
            f"use --data.{name}-column NUMBER."
        )


def _is_typical(name: str) -> bool:
    return _COLUMN_NAMES.fullmatch(name.lower()) is not None


def _column(column: int | str | None) -> int | str | None:
    """Convert a numeric column to int: on the command line, "2" is a string."""
    return int(column) if isinstance(column, str) and column.isdecimal() else column


def _index(where: str, column: int | str, header: list[str], num_columns: int) -> int:
    if isinstance(column, str):
        if column not in header:
            names = ", ".join(map(repr, header))
            near = (
                did_you_mean(column, header) or " The columns are those of all files of the data."
            )
            raise UserError(f"{where}: no column {column!r}; the header is {names}.{near}")
        if header.count(column) > 1:
            raise UserError(
                f"{where}: the header has the column {column!r} {header.count(column)} times."
            )
        return header.index(column)
    if not 1 <= column <= num_columns:
        raise UserError(
            f"{where}: no column {column}; there are {num_columns} columns, numbered from 1."
        )
    return column - 1


def _candidates(names: Sequence[str], header: Sequence[str]) -> Sequence[int]:
    """Return the indices of the columns of typical names, if they are as many as the columns
    sought, else all."""
    typical = [index for index, cell in enumerate(header) if _is_typical(cell)]
    return typical if len(typical) == len(names) else range(len(header))


def _likely_columns(
    names: Sequence[str],
    candidates: Sequence[int],
    header: Sequence[str],
    below: Sequence[Sequence[str]],
) -> list[int]:
    """Return the index of the column that each name may be: the first candidates.

    Of a text or file and its label, the label is the column with the fewest different values, but
    more than one, and the text the one with the longest cells, unless the header has a column of
    that name.
    """
    if len(names) > 2 or not set(names) <= {"text", "file", "label"}:
        return list(candidates[: len(names)])
    values = {index: [row[index] for row in below if index < len(row)] for index in candidates}
    expected = {header[index].strip().lower(): index for index in candidates}
    found: dict[str, int] = {name: expected[name] for name in names if name in expected}
    for name in reversed(names):  # the label first
        free = [index for index in candidates if index not in found.values()]
        if name in found or not free:
            continue
        if name == "label":
            counts = {index: len(set(values[index])) for index in free}
            found[name] = min(free, key=lambda index: (counts[index] < 2, counts[index], -index))
        else:
            lengths = {index: sum(map(len, values[index])) for index in free}
            found[name] = max(free, key=lengths.__getitem__)
    return [found[name] for name in names if name in found]
