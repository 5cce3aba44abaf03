"""Writing tables row by row: CSV, TSV, JSON objects, Parquet. (no torch)"""

import csv
import io
import json
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from regard.errors import UserError
from regard.system.extras import import_extra
from regard.system.verbosity import print_notice
from regard.system.writing import replace_atomically, valid_text

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
"""Suffixes of the tables that are written."""
_GROUP_ROWS = 10_000
"""Number of rows of a group of Parquet; the first group decides the types."""
_ONE_LINE = str.maketrans("\t\n\r", "   ")


class TableWriter:
    """Table that is written row by row. The columns are those of the first row, except in JSONL."""

    def __init__(self, path: Path, file: BinaryIO, types: Mapping[str, type]):
        self.path, self.suffix = path, path.suffix.lower()
        self._file, self._types = file, types
        self._columns: list[str] = []
        self._left_out: set[str] = set()
        self._group: list[Mapping[str, Any]] = []
        self._writer: Any = None
        if self.suffix == ".parquet":
            self._pyarrow = import_extra("pyarrow", str(path))
            self._parquet = import_extra("pyarrow.parquet", str(path))

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row; columns that the first one lacks are left out, with a notice."""
        if self.suffix == ".jsonl":
            text = valid_text(json.dumps(row, ensure_ascii=False, default=str))
            self._file.write(text.encode() + b"\n")
            return
        if not self._columns:
            self._columns = [*row]
            if self.suffix != ".parquet":
                self._write_line(self._columns)
        for name in row.keys() - {*self._columns} - self._left_out:
            self._left_out.add(name)
            print_notice(f"{self.path}: the first row has no column {name!r}: it is left out")
        cells = {name: row.get(name) for name in self._columns}
        if self.suffix != ".parquet":
            self._write_line([_to_cell(value) for value in cells.values()])
            return
        self._group.append(cells)
        if len(self._group) == _GROUP_ROWS:
            self._write_group()

    def flush(self) -> None:
        """Write the rows that are left."""
        if self.suffix == ".parquet":
            self._write_group()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _write_line(self, cells: list[str]) -> None:
        """Write a line of CSV, or of TSV without the tabs and line ends of cells."""
        if self.suffix == ".csv":
            text = io.StringIO()
            csv.writer(text, lineterminator="\r\n").writerow(cells)  # quotes both characters
            line = text.getvalue().removesuffix("\r\n") + "\n"
        else:
            line = "\t".join(cell.translate(_ONE_LINE) for cell in cells) + "\n"
        self._file.write(line.encode("utf-8", "surrogateescape"))

    def _write_group(self) -> None:
        pa, parquet = self._pyarrow, self._parquet
        try:
            table = pa.Table.from_pylist(self._group, self._writer and self._writer.schema)
        except (pa.ArrowException, TypeError) as error:
            problem = "a column has values of several types, for which there are .csv and .jsonl"
            raise UserError(f"{self.path}: {problem}: {error}") from None
        if self._writer is None:
            fields, types = [], {float: pa.float64(), int: pa.int64()}
            for field in table.schema:
                kind = types.get(self._types.get(field.name, str), pa.string())
                fields.append(field.with_type(kind) if pa.types.is_null(field.type) else field)
            table = table.cast(pa.schema(fields))
            self._writer = parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)
        self._group.clear()


@contextmanager
def open_table_atomically(
    path: Path, types: Mapping[str, type]
) -> Generator[TableWriter, None, None]:
    """Open a table, by its suffix, that appears at `path` when the block ends; an error leaves no
    file. Raises as `replace_atomically`.

    types: of columns that may be empty at first; by default, they are texts.
    """
    with (
        replace_atomically(path) as unfinished,
        unfinished.open("wb") as file,
        closing(TableWriter(path, file, types)) as writer,
    ):
        yield writer
        writer.flush()


def shorten_numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of an answer, whose numbers are of single precision, with 7 digits."""
    cells = dict(row)
    for name, value in row.items():
        if isinstance(value, float):
            cells[name] = float(f"{value:.7g}")
    return cells


def _to_cell(value: Any) -> str:
    """Return a value as text: as it is, or as JSON; empty for None."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)
