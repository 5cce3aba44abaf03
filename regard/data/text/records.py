"""File formats of pairs of texts: each reader returns numbered records and a parser of a record.

A parser returns (source, target) or raises BadLine, so the caller decides whether to stop at a bad line. Problems of
the whole file raise UserError at once.
"""

import json
import re
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.text.lines import describe_decode_error, read_filled_lines, read_lines
from regard.data.text.tables import read_rows
from regard.errors import UserError, did_you_mean
from regard.system.files import decode_json

_EXCERPT_LEN = 60
_NO_OPTIONS = ("image", "text")
"""Columns of the files that have no options for the choice of columns."""
_COLUMN_NAMES = re.compile(
    r"source|target|src|tgt|trg|text|labels?|input|output|sentence|translation|review|sentiment|category|class|"
    r"english|german|french|spanish|italian|portuguese|dutch|russian|chinese|japanese|korean|arabic|turkish|polish|"
    r"en|de|fr|es|it|pt|nl|ru|zh|ja|ko|ar|tr|pl|cs|sv|da|fi|el|hu|ro|uk|he|hi|vi"
)
"""Typical names of columns, to recognize a header."""
_TYPE_NAMES = {int: "an integer", float: "a number", list: "a list"}


class BadLine(Exception):  # noqa: N818 - as StopIteration, it is a signal between two of our modules
    """Invalid record: `reason` is the category under which it is counted, `detail` the message for the user."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


class Records(NamedTuple):
    """Numbered records, and the function that parses one into (source, target)."""

    rows: Iterable[tuple[int, Any]]
    parse: Callable[[Any], tuple[str, str]]


class Columns(NamedTuple):
    """Columns of source and target: numbers from 1, or names, for which line 1 is a header."""

    source: int | str | None
    target: int | str | None
    names: tuple[str, str]
    """Default names, used if no column is given and line 1 has both; else columns 1 and 2 are used."""

    @property
    def hint(self) -> str:
        """Help on choosing two of several columns, for messages."""
        source, target = self.names
        header = f"add a header with {source} and {target}"
        return header if self.names == _NO_OPTIONS else f"use {_options(self.names, '1', '2')}, or {header}"


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
        return _decode(row[0], f" in {source.name}"), _decode(row[1], f" in {target.name}")

    rows = enumerate(zip(sources, targets, strict=True), start=1)
    return Records((row for row in rows if row[1][0].strip() or row[1][1].strip()), parse)


def read_tsv_records(path: Path, columns: Columns) -> Records:
    """Read columns separated by one tab, without quoting; see `_records`."""
    return _records(path, read_filled_lines(path), columns, "a tab", lambda line: _decode(line, "").split("\t"))


def read_csv_records(path: Path, columns: Columns) -> Records:
    """Read rows of CSV (regard.data.text.tables); see `_records`."""
    separator, rows = read_rows(path)
    return _records(path, list(rows), columns, repr(separator), list)


def read_jsonl_records(path: Path, source_field: str, target_field: str, *, also: tuple[type, ...] = ()) -> Records:
    """Read one JSON object a line. Dots in the name of a field refer to nested objects: translation.en.

    also: types of the target that are allowed besides str, see `get_field`.
    """

    def parse(line: bytes) -> tuple[str, str]:
        row = parse_json_object(_decode(line, ""))
        return get_field(row, source_field), get_field(row, target_field, also=also)

    return Records(read_filled_lines(path), parse)


def parse_json_object(text: str) -> dict[str, Any]:
    """Parse a line of JSON that must hold an object. Raises BadLine for anything else."""
    try:
        row = decode_json(text)
    except (ValueError, RecursionError) as error:
        raise BadLine("invalid JSON", f"not valid JSON: {error} ({excerpt(text)})") from None
    if not isinstance(row, dict):
        detail = f"expected a JSON object {{...}}, got {type(row).__name__} ({excerpt(text)})"
        raise BadLine("no JSON object", detail)
    return row


def get_field(row: dict[str, Any], name: str, *, also: tuple[type, ...] = ()) -> str:
    """Return the text of a field of a record. If no field has the full name, dots refer to nested objects.

    also: additional types (int, float, list) that are allowed, which are converted to JSON.

    Raises:  BadLine if the field is missing or of another type.
    """
    value: Any = row
    for part in [name] if name in row else name.split("."):
        if not isinstance(value, dict) or part not in value:
            known = list(value) if isinstance(value, dict) else []
            available = f"the fields are {', '.join(map(repr, known))}" if known else "there are no fields"
            near = f".{did_you_mean(part, known)}".rstrip(".")
            raise BadLine("missing field", f"no field {name!r} (--data.*-column selects a field); {available}{near}")
        value = value[part]
    try:
        if isinstance(value, also) and not isinstance(value, bool):
            return _check_encodable(json.dumps(value, ensure_ascii=False, default=repr), name)
        shown = excerpt(str(value))
    except RecursionError:
        shown = "deeply nested"
    if not isinstance(value, str):
        expected = " or ".join(["a string", *(_TYPE_NAMES[kind] for kind in also)])
        raise BadLine(
            "field is not a string", f"field {name!r} must be {expected}, got {type(value).__name__} ({shown})"
        )
    return _check_encodable(value, name)


def excerpt(text: str) -> str:
    """Return the start of a text, quoted and escaped, for messages."""
    return repr(text if len(text) <= _EXCERPT_LEN else text[: _EXCERPT_LEN - 3] + "...")


def _records(
    path: Path, rows: list[tuple[int, Any]], columns: Columns, separator: str, cells: Callable[[Any], list[str]]
) -> Records:
    """Select two columns. Every row must have as many cells as the header, or two; more cells are allowed if empty.

    Raises:  UserError if the header lacks a column.
    """
    if not rows:
        return Records([], _no_parse)
    first = rows[0][0]
    selected = [_column(columns.source, 1), _column(columns.target, 2)]
    is_default = columns.source is None and columns.target is None
    header: list[str] = []  # stays empty for a bad first row, which is handled below like others
    try:
        header = [name.strip() for name in cells(rows[0][1])]
    except BadLine as bad:
        if any(isinstance(column, str) for column in selected):
            raise UserError(f"{path}, line {first}: {bad.detail}.") from None
    if is_default:
        lower = [name.lower() for name in header]
        if all(lower.count(name) == 1 for name in columns.names):
            selected = [header[lower.index(name)] for name in columns.names]
            is_default = False
        elif len(lower) > 1 and all(map(_COLUMN_NAMES.fullmatch, lower[:2])):
            warnings.warn(
                f"{path}, line {first}: {header[0]!r} and {header[1]!r} look like a header, but are read as a pair; "
                f"use {_options(columns.names, *header[:2])} if this line is a header",
                stacklevel=2,
            )
    num_columns = 2 if is_default or not header else len(header)
    indices = [_index(f"{path}, line {first}", column, header, num_columns) for column in selected]

    def parse(row: Any) -> tuple[str, str]:
        values = cells(row)
        while len(values) > num_columns and not values[-1].strip():
            values.pop()
        if len(values) != num_columns:
            shown = excerpt(separator.join(values) if len(separator) == 1 else "\t".join(values).strip("\r"))
            hint = f"; {columns.hint}" if is_default and len(values) > num_columns else ""
            detail = f"expected {num_columns} columns separated by {separator}, got {len(values)} ({shown}){hint}"
            raise BadLine("wrong number of columns", detail)
        return values[indices[0]], values[indices[1]]

    is_named = any(isinstance(column, str) for column in selected)
    return Records(rows[1:] if is_named else rows, parse)


def _no_parse(_row: Any) -> tuple[str, str]:
    raise AssertionError("an empty file has no row to parse")  # pragma: no cover


def _check_encodable(text: str, name: str) -> str:
    """Return the text, or raise BadLine if it has a lone surrogate, which JSON can express."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise BadLine("not Unicode", f"field {name!r} has a lone surrogate ({excerpt(text)})") from error
    return text


def _decode(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLine("not UTF-8", describe_decode_error(error, where)) from None


def _column(column: int | str | None, default: int) -> int | str:
    """Convert a numeric column to int: on the command line, "2" is a string."""
    if column is None:
        return default
    return int(column) if isinstance(column, str) and column.isdecimal() else column


def _options(names: tuple[str, str], source: str, target: str) -> str:
    return f"--data.{names[0]}-column {source} --data.{names[1]}-column {target}"


def _index(where: str, column: int | str, header: list[str], num_columns: int) -> int:
    if isinstance(column, str):
        if column not in header:
            names = ", ".join(map(repr, header))
            raise UserError(f"{where}: no column {column!r}; the header is {names}.{did_you_mean(column, header)}")
        if header.count(column) > 1:
            raise UserError(f"{where}: the header has the column {column!r} {header.count(column)} times.")
        return header.index(column)
    if not 1 <= column <= num_columns:
        raise UserError(f"{where}: no column {column}; there are {num_columns} columns, numbered from 1.")
    return column - 1
