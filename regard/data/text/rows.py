"""Rows of files: TSV, CSV and JSON objects, with columns by name or number; plain or compressed.

Each reader returns numbered rows and a parser of a row, which returns the cells of the columns or
raises BadRow, so that the caller's policy decides whether to stop (regard.data.bad_rows). Problems
of the whole file raise UserError at once. Headers and columns: regard.data.text.headers.
`read_table` requires a header.
"""

import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.bad_rows import BadRow
from regard.data.config import Header
from regard.data.text.headers import Columns, numeric_columns, select_columns
from regard.data.text.lines import (
    OBJECTS,
    check_kind,
    describe_decode_error,
    read_filled_lines,
    read_lines,
    read_objects,
)
from regard.data.text.tables import DECIMAL_COMMA, read_rows
from regard.errors import UserError, did_you_mean
from regard.system.compression import plain_name
from regard.system.files import DifferentValues, decode_json

_EXCERPT_LEN = 60
_MOST_SHOWN = 200
_TRIED = 100
"""Number of rows in which quotes, and labels that repeat, are looked for."""
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
    """Read columns of a format: jsonl (`read_jsonl_records` with these options), tsv (one tab, no
    quoting) or csv.

    Every row must have as many cells as the header, or as there are columns; more are allowed if
    they are empty.

    Raises:  UserError if the header lacks a column.
    """
    if format == "jsonl":
        chosen = columns.chosen or columns.names
        fields = [str(column or name) for column, name in zip(chosen, columns.names, strict=True)]
        options["options"] = (
            [f"--data.{name}-column" for name in columns.names] if columns.has_options else ()
        )
        return read_jsonl_records(path, fields, **options)
    separator, rest, cells = _read_cells(path, format)
    rows = list(islice(rest, _TRIED))
    if not rows:
        return Records([], _no_parse)
    first = f"{path}, line {rows[0][0]}"
    if format == "tsv":
        _warn_of_quotes(path, rows)
    header: list[str] = []  # stays empty for a bad first row, which is reported where it is parsed
    try:
        header = [name.strip() for name in cells(rows[0][1])]
    except BadRow as bad:
        if columns.header == "yes" or columns.is_named:
            raise UserError(f"{first}: {bad.detail}.") from None
    selected = select_columns(first, header, [_cells_of(row, cells) for row in rows[1:]], columns)
    is_decimal_comma = columns.is_numeric and (separator == ";" or len(columns.names) > 2)

    def parse(row: Any) -> tuple[str, ...]:
        values = _fit(cells(row), selected.width, separator, selected.hint)
        found = tuple(values[index] for index in selected.indices)
        if not is_decimal_comma:
            return found
        return found[0], *(
            cell.replace(",", ".") if DECIMAL_COMMA.fullmatch(cell) else cell for cell in found[1:]
        )

    places = tuple(
        f"column {name!r}" if selected.is_header else f"column {name}" for name in selected.names
    )
    return Records(
        chain(rows[1:] if selected.is_header else rows, rest), parse, places, selected.names
    )


def read_jsonl_records(
    path: Path, fields: Sequence[str], *, also: tuple[type, ...] = (), options: Sequence[str] = ()
) -> Records:
    """Read JSON objects, a line each or in an array. Dots in a field's name refer to nested
    objects: translation.en.

    also:    types of the fields after the first that are allowed besides str, see `get_field`.
    options: the option that chooses each field, for messages.
    """
    allowed = [(), *[also] * (len(fields) - 1)]
    chosen = list(zip(fields, allowed, options or [""] * len(fields), strict=True))

    def parse(line: bytes) -> tuple[str, ...]:
        row = parse_json_object(decode_line(line))
        return tuple(
            get_field(row, name, also=kinds, option=option) for name, kinds, option in chosen
        )

    return Records(
        read_objects(path), parse, tuple(f"field {name!r}" for name in fields), tuple(fields)
    )


def read_table(
    path: Path, columns: Sequence[str], *, numeric: Sequence[str] = (), header: Header = "auto"
) -> Records:
    """Read the named columns of a file with a header, or the fields of JSON lines, by the suffix of
    the file.

    columns:  required columns; "duration|offset" means one of the two. The cells of a row are in
              the order of all these names. One that a row lacks is empty, but JSON needs the first.
    header:   no: the file has no header, and the columns in their order (the first of two).
    numeric:  columns in which a comma is the decimal point, if semicolons separate the cells.

    Raises: UserError naming the file and the line if it is not UTF-8 or not CSV, or the header
            lacks one of `columns` or has one twice.
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
            cells |= {
                name: cells[name].replace(",", ".")
                for name in numeric
                if cells.get(name, "").count(",") == 1
            }
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


def get_field(
    row: dict[str, Any], name: str, *, also: tuple[type, ...] = (), option: str = ""
) -> str:
    """Return the text of a field of a record. If no field has the full name, dots refer to nested
    objects.

    also:   additional types (bool, int, float, list) that are allowed, which are converted to JSON.
    option: the option that chooses the field, for messages.

    Raises:  BadRow if the field is missing or of another type.
    """
    value: Any = row
    for part in [name] if name in row else name.split("."):
        if not isinstance(value, dict) or part not in value:
            known = list(value) if isinstance(value, dict) else []
            available = (
                f"the fields are {', '.join(map(repr, known))}" if known else "there are no fields"
            )
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
    """Return the text of a line without a carriage return at its end. Raises BadRow if it is not
    UTF-8."""
    try:
        return line.decode("utf-8").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise BadRow("not UTF-8", describe_decode_error(error, where)) from None


def excerpt(text: str) -> str:
    """Return the start of a text, quoted and escaped, for messages."""
    return repr(text if len(text) <= _EXCERPT_LEN else text[: _EXCERPT_LEN - 3] + "...")


def _read_header(
    path: Path,
    rows: list[tuple[int, Any]],
    split: Callable[[Any], list[str]],
    columns: Sequence[str],
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
        is_data = len(header) == len(columns) and bool(numeric_columns(header))
        hint = (
            f"; if it is data, --data.header no reads the columns as {forms[0]}" if is_data else ""
        )
        raise UserError(
            f"{path}, line {first}: expected a header with {expected}, got "
            f"{','.join(header)[:80]!r}{hint}."
        )
    duplicates = [name for name in header if name and header.count(name) > 1]
    if duplicates:
        raise UserError(
            f"{path}, line {first}: the header has the column {duplicates[0][:60]!r} twice."
        )
    return header


def _cells_of(row: tuple[int, Any], cells: Callable[[Any], list[str]]) -> list[str]:
    """Return the cells of a row; none for a bad row, which is reported where it is parsed."""
    try:
        return cells(row[1])
    except BadRow:
        return []


def _warn_of_quotes(path: Path, rows: list[tuple[int, bytes]]) -> None:
    """Warn if all cells of the first rows are in quotes, or one has doubled quotes, as in a CSV
    with tabs."""
    start = [(number, line.rstrip(b"\r")) for number, line in rows[:_TRIED]]
    found = next((number for number, line in start if _DOUBLED_QUOTES.search(line)), None)
    if found is None and all(_QUOTED_CELLS.fullmatch(line) for _, line in start):
        found = start[0][0]
    if found is not None:
        warnings.warn(
            f"{path}, line {found}: cells are in quotes, which belong to the text in TSV; save the "
            f"file as .csv, or "
            "use --data.format csv, if they do not",
            stacklevel=2,
        )


def _fit(cells: list[str], count: int, separator: str, hint: str = "") -> list[str]:
    """Return the cells of a row without empty ones at its end beyond `count`. Raises BadRow for
    another number."""
    while len(cells) > count and not cells[-1].strip():
        cells = cells[:-1]
    if len(cells) == count:
        return cells
    name = "a tab" if separator == "\t" else repr(separator)
    more = f"; {hint}" if hint and len(cells) > count else ""
    shown = excerpt(separator.join(cells).strip("\r"))
    raise BadRow(
        "wrong number of columns",
        f"expected {count} columns separated by {name}, got {len(cells)} ({shown}){more}",
    )


def _read_cells(
    path: Path, format: str
) -> tuple[str, Iterator[tuple[int, Any]], Callable[[Any], list[str]]]:
    """Return the separator, the numbered rows that are not blank, and the function that splits one
    into cells."""
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
        raise BadRow(
            "not Unicode", f"field {name!r} has a lone surrogate ({excerpt(text)})"
        ) from error
    return text
