"""Rows of files: TSV, CSV and JSON objects, with columns by name or number; plain or compressed.

Each reader returns numbered rows and a parser of a row, which returns the cells of the columns or raises BadRow, so
that the caller's policy decides whether to stop (regard.data.bad_rows). Problems of the whole file raise UserError at
once. The setting `header` states whether the first row is a header. With auto it is one under these conditions:

    a column is chosen by name
    each column has its expected name in the row, in any case: at the number that was chosen for it, or else anywhere
    the targets are numbers, no cell of the row is one, and a cell of the next row is
    the reader requires a header (`read_table`)

Another row whose cells are typical names of columns is refused, since it may be either. So is one above labels whose
cells are short names, or 0 and 1, if the first is the expected name of the column, or if its label is none of the next
20 or more rows, in which labels repeat; of other cells, the latter is a warning. A column that is not chosen is the one
of its expected name in the header, or the one in its position; if there are more columns, it must be chosen.
"""

import json
import math
import re
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from regard.data.bad_rows import BadRow
from regard.data.config import Header
from regard.data.text.likely_columns import likely_columns
from regard.data.text.lines import (
    OBJECTS,
    check_kind,
    describe_decode_error,
    read_filled_lines,
    read_lines,
    read_objects,
)
from regard.data.text.numbers import parse_number
from regard.data.text.tables import DECIMAL_COMMA, read_rows
from regard.errors import UserError, did_you_mean
from regard.system.compression import plain_name
from regard.system.files import DifferentValues, decode_json

_EXCERPT_LEN = 60
_MOST_SHOWN = 200
_COLUMN_NAMES = re.compile(
    r"source|target|src|tgt|trg|texts?|labels?|input|output|sentences?|translation|reviews?|sentiment|category|class|"
    r"files?|file_?names?|file_?paths?|paths?|images?|image_?names?|image_?paths?|captions?|value|score|rating|stars|y|"
    r"english|german|french|spanish|italian|portuguese|dutch|russian|chinese|japanese|korean|arabic|turkish|polish|"
    r"en|de|fr|es|it|pt|nl|ru|zh|ja|ko|ar|tr|pl|cs|sv|da|fi|el|hu|ro|uk|he|hi|vi"
)
"""Typical names of columns, to recognize what may be a header."""
_WORD = re.compile(r"[^\W\d][\w-]{0,30}")
_NAME = re.compile(r"(?=.{1,40}$)[^\W\d][\w-]*(?: [\w-]+){0,2}")
_TRIED = 100
"""Number of rows in which quotes, and labels that repeat, are looked for."""
_LEAST_ROWS = 20
"""Number of rows below which a label that does not occur in others says nothing."""
_DOUBLED_QUOTES = re.compile(rb'(?:^|\t)"[^\t"]*""[^\t]*"(?:\t|$)')
_QUOTED_CELLS = re.compile(rb'"[^\t"]*"(?:\t"[^\t"]*")*')
_TYPE_NAMES = {bool: "true or false", int: "an integer", float: "a number", list: "a list"}


class Records(NamedTuple):
    """Numbered rows, and the function that parses one into its cells."""

    rows: Iterable[tuple[int, Any]]
    parse: Callable[[Any], tuple[str, ...]]
    places: tuple[str, ...] = ()
    """Description of each column, for messages: "column 'label'"; empty for two parallel files."""
    names: tuple[str, ...] = ()
    """Name of each column in the header, or its number; empty for two parallel files."""


class Columns(NamedTuple):
    """Columns of a file: their expected names, and those chosen, by number from 1 or by name in the header."""

    names: tuple[str, ...]
    chosen: tuple[int | str | None, ...] = ()
    """One for each name; None is the column of that name in a header, or the one in that position."""
    header: Header = "auto"
    """Header row of TSV and CSV."""
    has_options: bool = False
    """True if the options --data.NAME-column choose the columns."""
    is_open: bool = False
    """True if rows may have other columns as well, as many as the first row, also without a header."""
    most: int | None = None
    """Largest number of columns of rows that have neither a header nor chosen columns."""
    is_numeric: bool = False
    """True if the columns after the first hold numbers. A comma in one is the decimal point if semicolons separate the
    cells, or if there are several such columns."""

    def hint(self, first: int = 1) -> str:
        """Return help on choosing some of several columns, from the number of the first, for messages."""
        header = f"add a header with {' and '.join(self.names)}"
        numbers = [str(number) for number in range(first, len(self.names) + first)]
        return f"use {self.options(numbers)}, or {header}" if self.has_options else header

    def option(self, index: int) -> str:
        """Return the option that chooses a column, for messages; empty if there is none."""
        return f", --data.{self.names[index]}-column" if self.has_options else ""

    def options(self, columns: Sequence[str]) -> str:
        """Return the options that choose these columns."""
        pairs = list(zip(self.names, columns, strict=True))
        chosen = {name: [shlex.quote(column) for other, column in pairs if other == name] for name in self.names}
        return " ".join(f"--data.{name}-column {' '.join(own)}" for name, own in chosen.items())


def read_text_records(source: Path, target: Path) -> Records:
    """Read two parallel text files, aligned line by line. Lines that are blank in both are skipped.

    Raises:  UserError with both counts if the files differ in their number of lines.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise UserError(
            f"parallel files must have equally many lines, got {len(sources)} in {source} and "
            f"{len(targets)} in {target}."
        )

    def parse(row: tuple[bytes, bytes]) -> tuple[str, str]:
        return decode_line(row[0], f" in {source.name}"), decode_line(row[1], f" in {target.name}")

    rows = enumerate(zip(sources, targets, strict=True), start=1)
    return Records((row for row in rows if row[1][0].strip() or row[1][1].strip()), parse)


def read_records(path: Path, format: str, columns: Columns, **options: Any) -> Records:
    """Read columns of a format: jsonl (`read_jsonl_records` with these options), tsv (one tab, no quoting) or csv.

    Every row must have as many cells as the header, or as there are columns; more are allowed if they are empty.

    Raises:  UserError if the header lacks a column.
    """
    if format == "jsonl":
        chosen = columns.chosen or columns.names
        fields = [str(column or name) for column, name in zip(chosen, columns.names, strict=True)]
        options["options"] = [f"--data.{name}-column" for name in columns.names] if columns.has_options else ()
        return read_jsonl_records(path, fields, **options)
    separator, rest, cells = _read_cells(path, format)
    rows = list(islice(rest, _TRIED))
    if not rows:
        return Records([], _no_parse)
    first, names = f"{path}, line {rows[0][0]}", columns.names
    chosen = [_column(column) for column in columns.chosen or (None,) * len(names)]
    is_named = any(isinstance(column, str) for column in chosen)
    if is_named and columns.header == "no":
        shown = next(column for column in chosen if isinstance(column, str))
        raise UserError(f"{path}: columns must be chosen by number with --data.header no, got {shown!r}.")
    if format == "tsv":
        _warn_of_quotes(path, rows)
    header: list[str] = []  # stays empty for a bad first row, which is handled below like others
    try:
        header = [name.strip() for name in cells(rows[0][1])]
    except BadRow as bad:
        if is_named or columns.header == "yes":
            raise UserError(f"{first}: {bad.detail}.") from None
    by_name = _find_names(header, chosen, names)
    is_known = columns.header == "auto" and (is_named or None not in by_name)
    is_above = columns.header == "auto" and columns.is_numeric and _is_above_numbers(header, rows, cells)
    is_header = columns.header == "yes" or is_known or is_above
    is_default = not is_header and all(column is None for column in chosen)
    width = len(names) if (is_default and not columns.is_open) or not header else len(header)
    indices: list[int | None] = [
        _index(f"{first}{columns.option(i)}", column, header, width)
        if column is not None
        else (by_name[i] if is_header else None)
        for i, column in enumerate(chosen)
    ]
    below = [_cells_of([row], cells) for row in rows[1:]]
    if None in indices and width != len(names) and not is_default:
        numeric = _numeric_hint(columns, header, rows, cells)
        hint = numeric + _width_hint(columns, header, below, is_header=True) if is_header else ""
        _refuse_missing(first, names[indices.index(None)], header, hint)
    selected = _fill(indices, width)
    has_more = any(header[width:])  # reported where the row is parsed
    if columns.header == "auto" and not (is_header or columns.is_open or has_more) and len(header) > max(selected):
        whole = [row for row in below if len(row) > max(selected)]
        _check_data(first, *([row[index] for index in selected] for row in (header, *whole)), columns=columns)
    if columns.is_open and is_default:
        _check_open(first, header, below[0] if below else [], columns)
    # A single longer row is an error of its own.
    hint = _width_hint(columns, header, below) if is_default and has_more else ""
    is_decimal_comma = columns.is_numeric and (separator == ";" or len(names) > 2)

    def parse(row: Any) -> tuple[str, ...]:
        values = _fit(cells(row), width, separator, hint)
        found = tuple(values[index] for index in selected)
        if not is_decimal_comma:
            return found
        return found[0], *(cell.replace(",", ".") if DECIMAL_COMMA.fullmatch(cell) else cell for cell in found[1:])

    found_names = tuple(header[i] if is_header and i < len(header) else str(i + 1) for i in selected)
    places = tuple(f"column {name!r}" if is_header else f"column {name}" for name in found_names)
    return Records(chain(rows[1:] if is_header else rows, rest), parse, places, found_names)


def read_jsonl_records(
    path: Path, fields: Sequence[str], *, also: tuple[type, ...] = (), options: Sequence[str] = ()
) -> Records:
    """Read JSON objects, a line each or in an array. Dots in a field's name refer to nested objects: translation.en.

    also:    types of the fields after the first that are allowed besides str, see `get_field`.
    options: the option that chooses each field, for messages.
    """
    allowed = [(), *[also] * (len(fields) - 1)]
    chosen = list(zip(fields, allowed, options or [""] * len(fields), strict=True))

    def parse(line: bytes) -> tuple[str, ...]:
        row = parse_json_object(decode_line(line))
        return tuple(get_field(row, name, also=kinds, option=option) for name, kinds, option in chosen)

    return Records(read_objects(path), parse, tuple(f"field {name!r}" for name in fields), tuple(fields))


def read_table(path: Path, columns: Sequence[str], *, numeric: Sequence[str] = (), header: Header = "auto") -> Records:
    """Read the named columns of a file with a header, or the fields of JSON lines, by the suffix of the file.

    columns:  required columns; "duration|offset" means one of the two. The cells of a row are in the order of all
              these names. One that a row lacks is empty, but JSON needs the first.
    header:   no: the file has no header, and the columns in their order (the first of two).
    numeric:  columns in which a comma is the decimal point, if semicolons separate the cells.

    Raises: UserError naming the file and the line if it is not UTF-8 or not CSV, or the header lacks one of `columns`
            or has one twice.
    """
    names = [name for column in columns for name in column.split("|")]
    suffix = Path(plain_name(path)).suffix
    check_kind(path, "a table in .csv, .tsv or .jsonl")
    if suffix in OBJECTS:

        def parse_object(line: bytes) -> tuple[str, ...]:
            row = parse_json_object(decode_line(line))
            present = [name for name in names if row.get(name) is not None]
            cells = {name: get_field(row, name, also=(int, float)) for name in {names[0], *present}}
            return tuple(cells.get(name, "").strip() for name in names)

        return Records(read_objects(path), parse_object)
    separator, rest, split = _read_cells(path, "tsv" if suffix in (".tsv", ".tab") else "csv")
    if header == "no":
        found = [column.partition("|")[0] for column in columns]
    else:
        found = _read_header(path, list(islice(rest, 1)), split, columns)

    def parse(row: Any) -> tuple[str, ...]:
        cells = dict(zip(found, _fit(split(row), len(found), separator), strict=True))
        if separator == ";":
            cells |= {name: cells[name].replace(",", ".") for name in numeric if cells.get(name, "").count(",") == 1}
        return tuple(cells.get(name, "").strip() for name in names)

    return Records(rest, parse)


def parse_json_object(text: str) -> dict[str, Any]:
    """Parse a line of JSON that must hold an object. Raises BadRow for anything else."""
    try:
        row = decode_json(text)
    except (ValueError, RecursionError) as error:
        raise BadRow("invalid JSON", f"not valid JSON: {error} ({excerpt(text)})") from None
    if not isinstance(row, dict):
        detail = f"expected a JSON object {{...}}, got {type(row).__name__} ({excerpt(text)})"
        raise BadRow("no JSON object", detail)
    return row


def get_field(row: dict[str, Any], name: str, *, also: tuple[type, ...] = (), option: str = "") -> str:
    """Return the text of a field of a record. If no field has the full name, dots refer to nested objects.

    also:   additional types (bool, int, float, list) that are allowed, which are converted to JSON.
    option: the option that chooses the field, for messages.

    Raises:  BadRow if the field is missing or of another type.
    """
    value: Any = row
    for part in [name] if name in row else name.split("."):
        if not isinstance(value, dict) or part not in value:
            known = list(value) if isinstance(value, dict) else []
            available = f"the fields are {', '.join(map(repr, known))}" if known else "there are no fields"
            near = f".{did_you_mean(part, known)}".rstrip(".")
            remedy = f" ({option} chooses another)" if option else ""
            raise BadRow("missing field", f"no field {name!r}{remedy}; {available}{near}")
        value = value[part]
    try:
        if isinstance(value, also) and (bool in also or not isinstance(value, bool)):
            return _check_encodable(json.dumps(value, ensure_ascii=False, default=repr), name)
        shown = excerpt(str(value))
    except RecursionError:
        shown = "deeply nested"
    if not isinstance(value, str):
        expected = " or ".join(["a string", *(_TYPE_NAMES[kind] for kind in also)])
        found = "null" if value is None else f"{type(value).__name__} ({shown})"
        if isinstance(value, DifferentValues):
            found = repr(value)[:_MOST_SHOWN]
        if isinstance(value, list) and bool in also:  # the label of a class, or one of several
            found += "; --data.target labels with one --data.label-column reads a list of labels"
        raise BadRow("field is not a string", f"field {name!r} must be {expected}, got {found}")
    return _check_encodable(value, name)


def decode_line(line: bytes, where: str = "") -> str:
    """Return the text of a line without a carriage return at its end. Raises BadRow if it is not UTF-8."""
    try:
        return line.decode("utf-8").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise BadRow("not UTF-8", describe_decode_error(error, where)) from None


def excerpt(text: str) -> str:
    """Return the start of a text, quoted and escaped, for messages."""
    return repr(text if len(text) <= _EXCERPT_LEN else text[: _EXCERPT_LEN - 3] + "...")


def _read_header(
    path: Path, rows: list[tuple[int, Any]], split: Callable[[Any], list[str]], columns: Sequence[str]
) -> list[str]:
    """Return the names in the first row. Raises UserError as `read_table`."""
    first = rows[0][0] if rows else 1
    try:
        header = [name.strip().lower() for name in split(rows[0][1])] if rows else []
    except BadRow as bad:
        raise UserError(f"{path}, line {first}: {bad.detail}.") from None
    if not all(set(name.split("|")) & set(header) for name in columns):
        forms = [",".join(column.split("|")[side] for column in columns) for side in (0, -1)]
        expected = " or ".join(dict.fromkeys(forms))
        is_data = len(header) == len(columns) and bool(_numeric_columns(header))
        hint = f"; if it is data, --data.header no reads the columns as {forms[0]}" if is_data else ""
        raise UserError(
            f"{path}, line {first}: expected a header with {expected}, got {','.join(header)[:80]!r}{hint}."
        )
    duplicates = [name for name in header if name and header.count(name) > 1]
    if duplicates:
        raise UserError(f"{path}, line {first}: the header has the column {duplicates[0][:60]!r} twice.")
    return header


def _is_above_numbers(header: list[str], rows: Sequence[tuple[int, Any]], cells: Callable[[Any], list[str]]) -> bool:
    """Return True if no cell of the first row is a number, and one of the second is: the first names columns."""
    return not _numeric_columns(header) and bool(_numeric_columns(_cells_of(rows[1:2], cells)))


def _numeric_hint(
    columns: Columns, header: list[str], rows: Sequence[tuple[int, Any]], cells: Callable[[Any], list[str]]
) -> str:
    """Return the option that chooses all columns of numbers, by the first row below the header."""
    if not (columns.is_numeric and columns.has_options):
        return ""
    names = [header[index] for index in _numeric_columns(_cells_of(rows[1:2], cells)) if index < len(header)]
    return f"use --data.{columns.names[-1]}-column {' '.join(names)} for all numbers; or " if names else ""


def _refuse_missing(where: str, name: str, header: Sequence[str], hint: str) -> NoReturn:
    """Raise UserError for a column that is not chosen among others. hint: the options that choose it in a header."""
    if not hint:
        raise UserError(f"{where}: has {len(header)} columns: choose the column of the {name}, too.")
    raise UserError(f"{where}: no column {name!r} in the header {', '.join(map(repr, header))}; {hint}.")


def _width_hint(columns: Columns, header: list[str], below: Sequence[Sequence[str]], *, is_header: bool = False) -> str:
    """Return the options for rows of more cells than columns: by name if the first row may name them, and by number.

    below: cells of the rows below the first.
    """
    typical = list(map(_is_typical, header))
    is_named = sum(typical) == len(columns.names)
    if columns.names[-1] == "label":
        is_named = any(typical) or all(_NAME.fullmatch(cell) for cell in header if cell)
    is_one_each = len(set(columns.names)) == len(columns.names)
    if not columns.has_options or not is_one_each or columns.header == "no" or not (is_header or is_named):
        return columns.hint(first=2 if 0 in _numeric_columns(header) else 1)
    likely = likely_columns(columns.names, header, below, typical=typical)
    named = columns.options([header[index] for index in likely])
    if is_header:
        return f"use {named}"
    numbered = columns.options([str(index + 1) for index in likely])
    return f"use {named} if the first row names the columns, and {numbered} if it is data"


def _cells_of(rows: Sequence[tuple[int, Any]], cells: Callable[[Any], list[str]]) -> list[str]:
    """Return the cells of the first of the rows; none for a bad row, which is reported where it is parsed."""
    try:
        return cells(rows[0][1]) if rows else []
    except BadRow:
        return []


def _numeric_columns(cells: Sequence[str]) -> list[int]:
    """Return the indices of the cells that are numbers, also with a decimal comma."""
    numbers = [cell.strip().replace(",", ".") if cell.count(",") == 1 else cell for cell in cells]
    return [index for index, cell in enumerate(numbers) if parse_number(cell, most=math.inf) is not None]


def _find_names(header: list[str], chosen: Sequence[int | str | None], names: Sequence[str]) -> list[int | None]:
    """Return the index of the column of each name in a header, at the number that was chosen or else anywhere."""
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
        free = (column for column in (position, *range(width)) if column not in taken and column < width)
        filled.append(next(free, position) if index is None else index)
        taken.add(filled[-1])
    return filled


def _warn_of_quotes(path: Path, rows: list[tuple[int, bytes]]) -> None:
    """Warn if all cells of the first rows are in quotes, or one has doubled quotes, as in a CSV with tabs."""
    start = [(number, line.rstrip(b"\r")) for number, line in rows[:_TRIED]]
    found = next((number for number, line in start if _DOUBLED_QUOTES.search(line)), None)
    if found is None and all(_QUOTED_CELLS.fullmatch(line) for _, line in start):
        found = start[0][0]
    if found is not None:
        warnings.warn(
            f"{path}, line {found}: cells are in quotes, which belong to the text in TSV; save the file as .csv, or "
            "use --data.format csv, if they do not",
            stacklevel=2,
        )


def _check_data(where: str, cells: Sequence[str], *below: Sequence[str], columns: Columns) -> None:
    """Raise UserError if the cells of the first row may be names of columns; warn if they are unlike those below."""
    typical = [_is_typical(cell) for cell in cells]
    labels = [row[-1] for row in below]
    is_label = columns.names[-1] == "label"
    is_expected = cells[0].lower() == columns.names[0] or (all(typical[1:]) and _WORD.fullmatch(cells[0]))
    is_other = len(labels) >= _LEAST_ROWS and cells[-1] not in labels and len(set(labels)) <= len(labels) / 2
    is_short = all(map(_NAME.fullmatch, cells)) or list(cells) == [str(number) for number in range(len(cells))]
    if all(typical) or (is_label and is_short and (is_expected or is_other)):
        likely = likely_columns(columns.names, cells, below, typical=typical)
        can_choose = columns.has_options and not any(map(str.isdecimal, cells))  # a number is that of a column
        named = columns.options([cells[index] for index in likely]) if can_choose else ""
        choice = f" (or choose columns: {named})" if named else ""
        shown = " and ".join(map(repr, cells))
        raise UserError(
            f"{where}: {shown} look like a header. Use --data.header yes if they name columns{choice}, and "
            "--data.header no if this line is data."
        )
    if is_label and is_other:
        warnings.warn(
            f"{where}: the label {excerpt(cells[-1])} is none of those of the next {len(labels)} rows: use "
            "--data.header yes if this line is a header",
            stacklevel=2,
        )


def _check_open(where: str, cells: list[str], following: Sequence[str], columns: Columns) -> None:
    """Raise UserError if the first row, of which the first column would be read, has too many or seems to name them.

    following: cells of the second row.
    """
    name, named = columns.names[0], [cell for cell in cells if cell]
    # An index, as pandas writes it: numbers without a name.
    is_index = columns.header == "auto" and named and not cells[0] and 0 in _numeric_columns(following[:1])
    is_header = len(cells) > 1 and all(map(_WORD.fullmatch, cells)) and any(map(_is_typical, cells))
    if is_index or (columns.header == "auto" and is_header):
        near = next((cell for cell in named if _is_typical(cell)), named[0])
        raise UserError(
            f"{where}: {' and '.join(map(repr, named))} look like a header without {name!r}: choose a column, such as "
            f"--data.{name}-column {shlex.quote(near)}; --data.header no if this line is data."
        )
    if columns.most is not None and len(cells) > columns.most and any(cells[columns.most :]):
        raise UserError(
            f"{where}: expected a {name} alone or the {columns.most} columns of training, got {len(cells)} columns; "
            f"use --data.{name}-column NUMBER."
        )


def _is_typical(name: str) -> bool:
    return _COLUMN_NAMES.fullmatch(name.lower()) is not None


def _fit(cells: list[str], count: int, separator: str, hint: str = "") -> list[str]:
    """Return the cells of a row without empty ones at its end beyond `count`. Raises BadRow for another number."""
    while len(cells) > count and not cells[-1].strip():
        cells = cells[:-1]
    if len(cells) == count:
        return cells
    name = "a tab" if separator == "\t" else repr(separator)
    more = f"; {hint}" if hint and len(cells) > count else ""
    shown = excerpt(separator.join(cells).strip("\r"))
    raise BadRow(
        "wrong number of columns", f"expected {count} columns separated by {name}, got {len(cells)} ({shown}){more}"
    )


def _read_cells(path: Path, format: str) -> tuple[str, Iterator[tuple[int, Any]], Callable[[Any], list[str]]]:
    """Return the separator, the numbered rows that are not blank, and the function that splits one into cells."""
    if format == "tsv":
        return "\t", read_filled_lines(path), lambda line: decode_line(line).split("\t")
    separator, rows = read_rows(path)
    return separator, rows, list


def _no_parse(_row: Any) -> tuple[str, str]:
    raise AssertionError("an empty file has no row to parse")  # pragma: no cover


def _check_encodable(text: str, name: str) -> str:
    """Return the text, or raise BadRow if it has a lone surrogate, which JSON can express."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise BadRow("not Unicode", f"field {name!r} has a lone surrogate ({excerpt(text)})") from error
    return text


def _column(column: int | str | None) -> int | str | None:
    """Convert a numeric column to int: on the command line, "2" is a string."""
    return int(column) if isinstance(column, str) and column.isdecimal() else column


def _index(where: str, column: int | str, header: list[str], num_columns: int) -> int:
    if isinstance(column, str):
        if column not in header:
            names = ", ".join(map(repr, header))
            near = did_you_mean(column, header) or " The columns are those of all files of the data."
            raise UserError(f"{where}: no column {column!r}; the header is {names}.{near}")
        if header.count(column) > 1:
            raise UserError(f"{where}: the header has the column {column!r} {header.count(column)} times.")
        return header.index(column)
    if not 1 <= column <= num_columns:
        raise UserError(f"{where}: no column {column}; there are {num_columns} columns, numbered from 1.")
    return column - 1
