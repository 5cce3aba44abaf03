"""Rows of tables: CSV, TSV, JSON objects and Parquet, plain or compressed.

docs/recipes/translate.md describes the formats. A row is read when it is needed, so that a file may
be larger than memory. Lines end at a line feed, or a carriage return and a line feed, and nowhere
else.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.bad_rows import BadRows
from regard.data.config import TableFormat, Tables
from regard.errors import UserError
from regard.system.extras import import_extra
from regard.system.files import check_file, open_text, read_bytes, suffix_of

_FORMATS: dict[str, TableFormat] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
TABLES = (*_FORMATS,)
"""Suffixes of files whose rows are inputs."""
FORMATS = _FORMATS | {".txt": "tsv"}
FILE_COLUMNS = ("file", "image", "filename")
_MISSING, _DEFAULT = -1, Tables()
csv.field_size_limit(2**31 - 1)  # of this process; Python's default is 131,072 characters
MAX_SHOWN = 60
"""Number of characters of a cell that a message shows."""


@dataclass(frozen=True)
class Table:
    """Some columns of a file. Iterating yields the number of each row's first line and its cells.

    Cells are texts in CSV and TSV, values of any type in JSON and Parquet, and None in optional
    columns that a row lacks. Blank lines are skipped.
    """

    path: str | Path
    names: Sequence[str]
    rows: Iterable[tuple[int, list[Any]]]
    header: Sequence[str] = ()
    """Names of all columns, if the file states them."""
    is_by_position: bool = False
    """True if columns have other names than the usual ones."""

    def __iter__(self) -> Iterator[tuple[int, list[Any]]]:
        return iter(self.rows)


class Input(NamedTuple):
    """Input as `TrainedRun.predict` takes it, and where it is from."""

    value: Any
    file: str | None = None
    """File of the input, or that has it in one of its lines; `-` for standard input."""
    line: int | None = None
    """Line or row of the file, from 1."""
    column: str = ""
    """Name of its column, if it is in a table."""
    columns: Mapping[str, Any] = {}
    """All columns of its row."""
    problem: str = ""
    """Reason why it cannot be read, for inputs that are skipped."""
    folder: str = ""
    """Folder or archive to which the name of the file is relative; empty: the working folder."""

    @property
    def source(self) -> str | None:
        """The input as text; None if it is a file or an array."""
        if isinstance(self.value, str):
            return None if self.value == self.file and self.line is None else self.value
        is_list = isinstance(self.value, list | tuple)
        is_words = is_list and all(isinstance(word, str) for word in self.value)
        return " ".join(self.value) if is_words else None

    def describe(self) -> dict[str, Any]:
        parts = {"file": self.file, "line": self.line, "source": self.source}
        return {name: part for name, part in parts.items() if part is not None}


def read_table(
    path: str | Path,
    columns: Sequence[str | int],
    config: Tables = _DEFAULT,
    *,
    optional: Sequence[str] = (),
    by_position: bool = False,
    format: str = "auto",
    blank_rows: bool = False,
    whole: bool = False,
    content: bytes | None = None,
    bad_rows: BadRows,
) -> Table:
    """Read columns, by name (with dots for nested objects) or by number from 1.

    optional: names of further columns that the file, or a row, may lack.
    by_position: `columns` are the usual names; without them the first columns are read, in files
        without a header, or of at most two columns.
    blank_rows: yield the blank lines of a CSV, too, as rows without cells.
    whole: the last cell of a row is a dictionary of all of its columns. Without a header, their
        names are their numbers, and `columns` if these are read by position.
    content: of a CSV, if it was read before.
    """
    path, header, encoding = Path(path), config.header, config.encoding
    kind = FORMATS.get(suffix_of(path)) if format == "auto" else format
    if kind is None:
        raise UserError(f"{path}: expected a file of the type {', '.join(FORMATS)} (also .gz ...).")
    if kind == "jsonl":
        names = [str(column) for column in columns]
        records = read_records(path, bad_rows, encoding)
        rows = select_fields(
            path, records, names, optional, bad_rows, whole=whole, by_position=by_position
        )
        return Table(path, names, rows)
    # On the command line, "2" is a text.
    columns = [int(column) if str(column).isdecimal() else column for column in columns]
    if kind == "parquet":
        file = _open_parquet(path)
        header_row = file.schema_arrow.names
        names = _find_columns(path, header_row, columns, by_position=by_position)
        records = (record for batch in file.iter_batches() for record in batch.to_pylist())
        records = enumerate(records, start=1)
        rows = select_fields(path, records, names, optional, bad_rows, whole=whole)
        return Table(path, names, rows, header_row)
    if kind == "csv":
        rows = (
            line for line in read_csv(path, bad_rows, content, encoding) if line[1] or blank_rows
        )
    else:
        texts = read_texts(path, bad_rows, encoding=encoding)
        rows = ((number, text.split("\t")) for number, text in texts)
    is_named = any(isinstance(column, str) for column in columns)
    width, keys, header_row = None, list[str](), list[str]()
    if header == "yes" or (header == "auto" and (kind == "csv" or (is_named and not by_position))):
        header_row = [cell.strip() for cell in next((row for _, row in rows if row), [])]
        width, keys = len(header_row), header_row
        names = _find_columns(path, header_row, columns, by_position=by_position)
        indices = [header_row.index(name) for name in names]
        indices += [header_row.index(x) if x in header_row else _MISSING for x in optional]
    else:
        if by_position:
            keys = [str(column) for column in columns]
            columns = range(1, len(columns) + 1)
        elif is_named:
            raise UserError(f"{path}: columns need numbers without a header, got {columns}.")
        names = keys or [str(column) for column in columns]
        indices = [int(column) - 1 for column in columns] + [_MISSING] * len(optional)
    refused = names if by_position and header == "auto" and not header_row else ()
    rows = _select_cells(
        path, rows, indices, width, bad_rows, keys=keys if whole else None, refused=refused
    )
    return Table(path, names, rows, header_row)


def read_rows_of_files(
    path: Path,
    columns: Sequence[str],
    config: Tables,
    bad_rows: BadRows,
    *,
    more: Sequence[str] = (),
) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return the rows of each file that a table names: location, and the cells that are not empty.

    Without a header, the columns are the file and `columns`; with one, they are found by name,
    `file`, `image` or `filename`, and may include `more`.
    """
    names = ("file", *columns)
    if config.header == "no":
        table = read_table(path, range(1, 1 + len(names)), config, bad_rows=bad_rows)
    else:
        names = (*FILE_COLUMNS, *columns, *more)
        config = replace(config, header="yes")
        table = read_table(path, (), config, optional=names, bad_rows=bad_rows)
    by_file: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for number, cells in table:
        row = {}
        for name, cell in zip(names, cells, strict=True):
            value = cell.strip() if isinstance(cell, str) else cell
            if value not in (None, ""):
                row[name] = value
        where = locate(path, number)
        with bad_rows.catch(where):
            file = next((as_text(row.pop(name)) for name in FILE_COLUMNS if name in row), "")
            if not file:
                raise UserError("expected the name of a file (column file, image or filename)")
            by_file.setdefault(file, []).append((where, row))
    return by_file


def read_column(
    path: Path, name: str, column: int | str | None, config: Tables = _DEFAULT, format: str = "auto"
) -> Iterator[Input]:
    """Yield the cells of a column, or in their place the problem of a row. The column is that of
    `name`, else the first, if `column` is None."""
    bad_rows = BadRows("skip")
    table = read_table(
        path,
        [column or name],
        config,
        by_position=column is None,
        format="auto" if format in ("text", "huggingface") else format,
        whole=True,
        bad_rows=bad_rows,
    )
    for problem, row in bad_rows.in_order(table):
        if row is None:
            columns = dict.fromkeys(table.header)
            yield Input("", str(path), None, table.names[0], columns, problem)
        else:
            number, (cell, columns) = row
            yield Input(as_text(cell), str(path), number, table.names[0], columns)


def column_names(path: Path, config: Tables) -> Sequence[str]:
    """Return the names of the columns of a table, or of the first record of JSON."""
    if FORMATS.get(suffix_of(path)) == "jsonl":
        _, record = next(read_records(path, BadRows("skip"), config.encoding), (0, None))
        return list(record) if isinstance(record, dict) else []
    return read_table(path, (), replace(config, header="yes"), bad_rows=BadRows("error", "")).header


def is_table(path: str | Path | None) -> bool:
    """Return True if the suffix of a file is that of a table."""
    return path is not None and suffix_of(path) in FORMATS


def locate(path: str | Path, number: int) -> str:
    """Return the location of a row, for messages."""
    return f"{path}, {'row' if suffix_of(path) in ('.json', '.parquet') else 'line'} {number}"


def read_lines(
    path: str | Path,
    content: bytes | None = None,
    encoding: str = "utf-8",
    *,
    keeps_ends: bool = False,
) -> Iterator[bytes]:
    r"""Yield the lines of a file, or of its content, without a byte order mark and, unless
    `keeps_ends`, without line ends; split at "\n" only."""
    with open_text(Path(path), encoding) if content is None else io.BytesIO(content) as file:
        for index, line in enumerate(file):
            whole = skip_mark(line, path) if index == 0 else line
            yield whole if keeps_ends else whole.removesuffix(b"\n").removesuffix(b"\r")


def read_texts(
    path: str | Path, bad_rows: BadRows, content: bytes | None = None, encoding: str = "utf-8"
) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line that is not blank, as `read_lines`."""
    for number, line in enumerate(read_lines(path, content, encoding), start=1):
        if line.strip():
            with bad_rows.catch():
                yield number, decode_line(line, locate(path, number))


def read_csv(
    path: str | Path, bad_rows: BadRows, content: bytes | None = None, encoding: str = "utf-8"
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line and the cells of each row of a CSV, none for a blank line,
    as `read_lines`. Cells are separated by commas, or by semicolons if the first line has these and
    no comma."""
    lines = read_lines(path, content, encoding, keeps_ends=True)
    first = next(lines, None)
    if first is None:
        return
    delimiter = ";" if b";" in first and b"," not in first else ","
    texts = (line.decode("utf-8", "surrogateescape") for line in chain([first], lines))
    reader = csv.reader(texts, strict=True, delimiter=delimiter)
    while True:
        number = reader.line_num + 1
        where = locate(path, number)
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:  # also rows after it may be wrong
            raise UserError(f"{where}: not a row of CSV: {error}.") from None
        with bad_rows.catch():
            hint = " (--data.encoding cp1252 reads files of Windows)"
            decode_line("".join(row).encode("utf-8", "surrogateescape"), where, hint)
            yield number, row


def skip_mark(start: bytes, path: str | Path) -> bytes:
    """Return the beginning of a text file without a byte order mark. Raises UserError for UTF-16,
    with a mark or without."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in start[:2]:
        raise UserError(f"{path}: is UTF-16, expected UTF-8 (--data.encoding utf-16 converts it).")
    return start.removeprefix(b"\xef\xbb\xbf")


def decode_line(line: bytes, where: str, hint: str = "") -> str:
    """Return the text of a line. Raises UserError naming `where` if it is not UTF-8."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8: {error}{hint}.") from None


def as_text(value: Any) -> str:
    """Return a cell as text: truth values, numbers and lists as in JSON; empty for None."""
    if value is None:
        return ""
    if isinstance(value, bool | int | float | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, dict):
        raise UserError(f"expected a text, got an object of {', '.join(value)[:MAX_SHOWN]}")
    return str(value)


def as_number(value: Any) -> float:
    """Return a cell as a number. Raises UserError if it is not a finite number, or is as 1_000."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or "_" in str(value):
        raise UserError(f"expected a number, got {excerpt(str(value))}")
    return number


def numeric_order(name: str) -> tuple[bool, float, str]:
    """Return the key that sorts numbers by value before other names; nan cannot be sorted."""
    try:
        value = float(name)
    except ValueError:
        value = math.nan
    return math.isnan(value), 0.0 if math.isnan(value) else value, name


def excerpt(text: str) -> str:
    """Return the start of a text, quoted and escaped, for messages."""
    return repr(text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "...")


def _find_columns(
    path: Path, header: Sequence[str], columns: Sequence[str | int], *, by_position: bool
) -> list[str]:
    if not header:
        raise UserError(f"{path}: is empty, expected a header row.")
    count = len(columns)
    has_usual = any(column in header for column in columns)
    if by_position and not has_usual and count <= len(header) <= max(2, count):
        columns = range(1, count + 1)
    found = []
    for column in columns:
        if isinstance(column, int) and 1 <= column <= len(header):
            found.append(header[column - 1])
            continue
        name = str(column)
        outer = name if name in header else name.partition(".")[0]
        if header.count(outer) != 1:
            problem = "several columns" if outer in header else "no column"
            known = ", ".join(map(repr, header))
            hint = f" --data.{column}-column chooses another." if by_position else ""
            raise UserError(f"{path}: {problem} {column!r}; the columns are {known}.{hint}")
        found.append(name)
    return found


def _select_cells(
    path: Path,
    rows: Iterable[tuple[int, list[str]]],
    indices: Sequence[int],
    width: int | None,
    bad_rows: BadRows,
    *,
    keys: list[str] | None,
    refused: Sequence[str],
) -> Iterator[tuple[int, list[Any]]]:
    """Yield the cells at these indices, and with the `keys` of the first ones all by name. Raises
    UserError if the first row has all `refused` names, as a header has."""
    for number, row in rows:
        if refused and {*refused} <= {cell.strip() for cell in row}:
            shown = " and ".join(map(repr, refused))
            raise UserError(f"{path}: the first line has {shown}: give --data.header yes, or no.")
        refused = ()
        if not row:
            yield number, []
            continue
        width = width or max(len(row), 1 + max(indices))
        if len(row) == width:
            cells: list[Any] = [row[index] if index >= 0 else None for index in indices]
            if keys is not None:
                keys += map(str, range(len(keys) + 1, width + 1))
                cells.append(dict(zip(keys, row, strict=True)))
            yield number, cells
            continue
        where, shown = locate(path, number), excerpt(" | ".join(row))
        bad_rows.add(f"{where}: expected {width} cells, got {len(row)} ({shown})")


def select_fields(
    path: str | Path,
    records: Iterable[tuple[int, Any]],
    names: Sequence[str],
    optional: Sequence[str],
    bad_rows: BadRows,
    *,
    whole: bool = False,
    by_position: bool = False,
) -> Iterator[tuple[int, list[Any]]]:
    """Yield the fields of these names of objects, and `whole` objects after them."""
    for number, record in records:
        try:
            cells = [_get_field(record, name) for name in names]
            cells += [record.get(name) for name in optional]
            yield number, [*cells, record] if whole else cells
        except KeyError as error:
            known = ", ".join(map(repr, record)) if isinstance(record, dict) else "missing"
            where = locate(path, number)
            hint = f". --data.{error.args[0]}-column chooses another" if by_position else ""
            bad_rows.add(f"{where}: no field {error.args[0]!r}; the fields are {known}{hint}")


def _get_field(record: Any, name: str) -> Any:
    """Return a field; if none has the whole name, dots refer to nested objects."""
    if isinstance(record, dict) and name in record:
        return record[name]
    value = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            raise KeyError(name)
        value = value[part]
    return value


def read_records(
    path: Path, bad_rows: BadRows, encoding: str = "utf-8"
) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each record of JSON, a line each, or in an array."""
    if suffix_of(path) == ".json":
        content = skip_mark(read_bytes(path, encoding), path).lstrip()
        if content.startswith(b"["):
            yield from enumerate(_parse(decode_line(content, str(path)), str(path)), start=1)
            return
    for number, text in read_texts(path, bad_rows, encoding=encoding):
        with bad_rows.catch():
            yield number, _parse(text, locate(path, number))


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON: {error}") from None


def _open_parquet(path: Path) -> Any:
    check_file(path)
    pa, parquet = import_extra("pyarrow", str(path)), import_extra("pyarrow.parquet", str(path))
    try:
        return parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a Parquet file: {error}") from None
