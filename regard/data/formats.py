"""The forms that pairs of texts come in: each gives numbered records and a parser for one of them.

A parser returns (source, target) or raises BadLine, so that the caller decides whether a bad line ends the
reading. What concerns the whole file raises UserError at once.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.lines import not_utf8, read_lines
from regard.errors import UserError
from regard.files import decode_json, did_you_mean

__all__ = ["BadLine", "Records", "excerpt", "field_of", "json_object", "jsonl_records", "text_records", "tsv_records"]

_EXCERPT_LEN = 60
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
    """Two parallel text files: line n of one belongs to line n of the other.

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

    return Records(enumerate(zip(sources, targets, strict=True), start=1), parse)


def tsv_records(path: Path, source_column: int | str | None, target_column: int | str | None) -> Records:
    """Columns separated by one tab, no quoting.

    A column is a number from 1, or a name: then line 1 is a header. Every line must have as many columns as
    line 1; two when the columns are not given.

    Raises:  UserError if line 1 has no such column.
    """
    lines = read_lines(path)
    wanted = [_column(source_column, 1), _column(target_column, 2)]
    named = any(isinstance(column, str) for column in wanted)
    try:
        header = [name.strip() for name in _decode(lines[0], "").split("\t")]
    except BadLine as bad:
        if named:
            raise UserError(f"{path}, line 1: {bad.detail}.") from None
        header = []  # counted or raised as any bad line, below
    default = source_column is None and target_column is None
    num_columns = 2 if default or not header else len(header)
    places = [_place(path, column, header, num_columns) for column in wanted]

    def parse(line: bytes) -> tuple[str, str]:
        columns = _decode(line, "").split("\t")
        if len(columns) != num_columns:
            shown = excerpt(line.decode().strip("\r"))
            detail = f"expected {num_columns} columns separated by a tab, got {len(columns)} ({shown})"
            raise BadLine("wrong number of columns", detail)
        return columns[places[0]], columns[places[1]]

    rows = list(enumerate(lines, start=1))
    return Records(rows[1:] if named else rows, parse)


def jsonl_records(path: Path, source_field: str, target_field: str, *, also: tuple[type, ...] = ()) -> Records:
    """One JSON object a line; a field's name may go into nested objects with dots: translation.en.

    also: what the target may be beside a text, see `field_of`.
    """

    def parse(line: bytes) -> tuple[str, str]:
        row = json_object(_decode(line, ""))
        return field_of(row, source_field), field_of(row, target_field, also=also)

    return Records(enumerate(read_lines(path), start=1), parse)


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


def _place(path: Path, column: int | str, header: list[str], num_columns: int) -> int:
    if isinstance(column, str):
        if column not in header:
            names = ", ".join(map(repr, header))
            raise UserError(
                f"{path}, line 1: no column {column!r}; the header is {names}.{did_you_mean(column, header)}"
            )
        if header.count(column) > 1:
            raise UserError(f"{path}, line 1: the header names the column {column!r} {header.count(column)} times.")
        return header.index(column)
    if not 1 <= column <= num_columns:
        raise UserError(f"{path}, line 1: no column {column}; there are {num_columns}, counted from 1.")
    return column - 1
