"""The forms that pairs of texts come in: each gives numbered records and a parser for one of them.

A parser returns (source, target) or raises BadLine, so that the caller decides whether a bad line ends the
reading. What concerns the whole file raises UserError at once.
"""

import json
import re
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.lines import filled_lines, not_utf8, read_lines
from regard.data.tables import read_rows
from regard.errors import UserError
from regard.files import decode_json, did_you_mean

_EXCERPT_LEN = 60
_NO_OPTIONS = ("image", "text")
"""The columns of files that have no options to choose them."""
_COLUMN_NAMES = re.compile(
    r"source|target|src|tgt|trg|text|labels?|input|output|sentence|translation|review|sentiment|category|class|"
    r"english|german|french|spanish|italian|portuguese|dutch|russian|chinese|japanese|korean|arabic|turkish|polish|"
    r"en|de|fr|es|it|pt|nl|ru|zh|ja|ko|ar|tr|pl|cs|sv|da|fi|el|hu|ro|uk|he|hi|vi"
)
"""What first lines of files of pairs say where they are headers."""
_KINDS = {int: "a whole number", float: "a number", list: "a list"}


class BadLine(Exception):  # noqa: N818 - as StopIteration, it is a signal between two of our modules
    """One record is no pair: a reason to count it under, and the detail that a person needs to mend it."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


class Records(NamedTuple):
    """Numbered records, and what turns one into (source, target)."""

    rows: Iterable[tuple[int, Any]]
    parse: Callable[[Any], tuple[str, str]]


def text_records(source: Path, target: Path) -> Records:
    """Two parallel text files: line n of one belongs to line n of the other. Lines that are blank in both are left out.

    Raises:  UserError if one has more lines than the other (both counts are in the message).
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise UserError(
            f"parallel files must have equally many lines, but {source} has {len(sources)} and "
            f"{target} has {len(targets)}."
        )

    def parse(row: tuple[bytes, bytes]) -> tuple[str, str]:
        return _decode(row[0], f" in {source.name}"), _decode(row[1], f" in {target.name}")

    rows = enumerate(zip(sources, targets, strict=True), start=1)
    return Records((row for row in rows if row[1][0].strip() or row[1][1].strip()), parse)


class Columns(NamedTuple):
    """Which columns hold the pair: numbers from 1, or names, for which line 1 is a header."""

    source: int | str | None
    target: int | str | None
    names: tuple[str, str]
    """If none is given: these, if line 1 names both; else columns 1 and 2."""

    @property
    def hint(self) -> str:
        """How to choose two columns of more."""
        source, target = self.names
        header = f"a first line that names {source} and {target}"
        return header if self.names == _NO_OPTIONS else f"{_options(self.names, '1', '2')}, or {header},"


def tsv_records(path: Path, columns: Columns) -> Records:
    """Columns separated by one tab, no quoting; see `_records`."""
    return _records(path, filled_lines(path), columns, "a tab", lambda line: _decode(line, "").split("\t"))


def csv_records(path: Path, columns: Columns) -> Records:
    """Rows of CSV (regard.data.tables); see `_records`."""
    separator, rows = read_rows(path)
    return _records(path, list(rows), columns, repr(separator), list)


def _records(
    path: Path, rows: list[tuple[int, Any]], columns: Columns, separator: str, cells: Callable[[Any], list[str]]
) -> Records:
    """Every row must have as many columns as the first; two when they are not given. More that are empty are left out.

    Raises:  UserError if the first row has no such column.
    """
    if not rows:
        return Records([], _no_parse)
    first = rows[0][0]
    given = [_column(columns.source, 1), _column(columns.target, 2)]
    is_default = columns.source is None and columns.target is None
    header: list[str] = []  # of a first row that is bad: counted or raised as others, below
    try:
        header = [name.strip() for name in cells(rows[0][1])]
    except BadLine as bad:
        if any(isinstance(column, str) for column in given):
            raise UserError(f"{path}, line {first}: {bad.detail}.") from None
    if is_default:
        lower = [name.lower() for name in header]
        if all(lower.count(name) == 1 for name in columns.names):
            given = [header[lower.index(name)] for name in columns.names]
            is_default = False
        elif len(lower) > 1 and all(map(_COLUMN_NAMES.fullmatch, lower[:2])):
            warnings.warn(
                f"{path}, line {first}: {header[0]!r} and {header[1]!r} look like names of columns, but are read as a "
                f"pair; {_options(columns.names, *header[:2])} makes this line a header",
                stacklevel=2,
            )
    num_columns = 2 if is_default or not header else len(header)
    places = [_place(f"{path}, line {first}", column, header, num_columns) for column in given]

    def parse(row: Any) -> tuple[str, str]:
        found = cells(row)
        while len(found) > num_columns and not found[-1].strip():
            found.pop()
        if len(found) != num_columns:
            shown = excerpt(separator.join(found) if len(separator) == 1 else "\t".join(found).strip("\r"))
            hint = f"; {columns.hint} chooses two" if is_default and len(found) > num_columns else ""
            detail = f"expected {num_columns} columns separated by {separator}, got {len(found)} ({shown}){hint}"
            raise BadLine("wrong number of columns", detail)
        return found[places[0]], found[places[1]]

    is_named = any(isinstance(column, str) for column in given)
    return Records(rows[1:] if is_named else rows, parse)


def _no_parse(_row: Any) -> tuple[str, str]:
    raise AssertionError("there is no row")  # pragma: no cover


def jsonl_records(path: Path, source_field: str, target_field: str, *, also: tuple[type, ...] = ()) -> Records:
    """One JSON object a line; a field's name may go into nested objects with dots: translation.en.

    also: what the target may be beside a text, see `field_of`.
    """

    def parse(line: bytes) -> tuple[str, str]:
        row = json_object(_decode(line, ""))
        return field_of(row, source_field), field_of(row, target_field, also=also)

    return Records(filled_lines(path), parse)


def json_object(text: str) -> dict[str, Any]:
    """The object that a line of JSON holds. Raises BadLine for anything else."""
    try:
        row = decode_json(text)
    except (ValueError, RecursionError) as error:
        raise BadLine("invalid JSON", f"not valid JSON: {error} ({excerpt(text)})") from None
    if not isinstance(row, dict):
        detail = f"expected a JSON object {{...}}, got {type(row).__name__} ({excerpt(text)})"
        raise BadLine("no JSON object", detail)
    return row


def field_of(row: dict[str, Any], name: str, *, also: tuple[type, ...] = ()) -> str:
    """The text in a field of a record; where no field has the full name, dots go into nested objects.

    also: of int, float and list, what does as well; its text is how JSON writes it.

    Raises:  BadLine if there is no such field, or if it holds no text.
    """
    value: Any = row
    for part in [name] if name in row else name.split("."):
        if not isinstance(value, dict) or part not in value:
            known = list(value) if isinstance(value, dict) else []
            has = f"the fields are {', '.join(map(repr, known))}" if known else "there are no fields"
            near = f".{did_you_mean(part, known)}".rstrip(".")
            raise BadLine("missing field", f"no field {name!r} (see source_column, target_column); {has}{near}")
        value = value[part]
    try:
        if isinstance(value, also) and not isinstance(value, bool):
            return _encodable(json.dumps(value, ensure_ascii=False, default=repr), name)
        shown = excerpt(str(value))
    except RecursionError:
        shown = "nested deeply"
    if not isinstance(value, str):
        wanted = " or ".join(["a text", *(_KINDS[kind] for kind in also)])
        raise BadLine("field is no text", f"field {name!r} must hold {wanted}, got {type(value).__name__} ({shown})")
    return _encodable(value, name)


def excerpt(text: str) -> str:
    """The start of a text, quoted and escaped, for messages."""
    return repr(text if len(text) <= _EXCERPT_LEN else text[: _EXCERPT_LEN - 3] + "...")


def _encodable(text: str, name: str) -> str:
    """The text, if it is Unicode: JSON can write half a surrogate pair."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise BadLine("not Unicode", f"field {name!r} holds half a surrogate pair ({excerpt(text)})") from error
    return text


def _decode(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLine("not UTF-8", not_utf8(error, where)) from None


def _column(column: int | str | None, default: int) -> int | str:
    """A column as a number where it is one: from the command line "2" comes as text."""
    if column is None:
        return default
    return int(column) if isinstance(column, str) and column.isdecimal() else column


def _options(names: tuple[str, str], source: str, target: str) -> str:
    return f"--data.{names[0]}-column {source} --data.{names[1]}-column {target}"


def _place(where: str, column: int | str, header: list[str], num_columns: int) -> int:
    if isinstance(column, str):
        if column not in header:
            names = ", ".join(map(repr, header))
            raise UserError(f"{where}: no column {column!r}; the header is {names}.{did_you_mean(column, header)}")
        if header.count(column) > 1:
            raise UserError(f"{where}: the header names the column {column!r} {header.count(column)} times.")
        return header.index(column)
    if not 1 <= column <= num_columns:
        raise UserError(f"{where}: no column {column}; there are {num_columns}, counted from 1.")
    return column - 1
