"""Writing tables row by row: CSV, TSV, JSON objects, Parquet. (no torch)"""

import csv
import json
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.system.verbosity import print_notice
from regard.system.writing import replace_atomically, valid_text

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
"""Suffixes of the tables that are written."""
_GROUP_ROWS = 10_000
"""Number of rows of a group of Parquet."""
_ONE_LINE = str.maketrans("\t\n\r", "   ")


class TableWriter:
    """Table that is written row by row: CSV, TSV without tabs and line ends in cells, or JSONL."""

    def __init__(self, path: Path, unfinished: Path, types: Mapping[str, type]):
        self.path, self.suffix, self.types = path, path.suffix.lower(), types
        self._columns: tuple[str, ...] | None = None
        self._left_out: set[str] = set()
        if self.suffix != ".parquet":
            self._file = unfinished.open(
                "w", encoding="utf-8", errors="surrogateescape", newline="\n"
            )

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row. The columns are those of the first row, except in JSONL; others are left out,
        with a notice."""
        if self.suffix == ".jsonl":
            line = json.dumps(row, ensure_ascii=False, default=str)
            self._file.write(valid_text(line) + "\n")
            return
        if self._columns is None:
            self._columns = tuple(row)
            self.begin(self._columns)
        for name in row.keys() - {*self._columns} - self._left_out:
            self._left_out.add(name)
            print_notice(f"{self.path}: the first row has no column {name!r}: it is left out")
        self.add({name: row.get(name) for name in self._columns})

    def begin(self, columns: tuple[str, ...]) -> None:
        """Write the names of the columns."""
        self.add({name: name for name in columns})

    def add(self, row: Mapping[str, Any]) -> None:
        """Write the cells of a row, one for each column."""
        cells = [_to_cell(value) for value in row.values()]
        if self.suffix == ".csv":
            csv.writer(self._file, lineterminator="\n").writerow(cells)
        else:
            self._file.write("\t".join(cell.translate(_ONE_LINE) for cell in cells) + "\n")

    def close(self) -> None:
        self._file.close()


class _ParquetTable(TableWriter):
    """Parquet, which is written in groups of rows. Its types are those of the first group."""

    def __init__(self, path: Path, unfinished: Path, types: Mapping[str, type]):
        super().__init__(path, unfinished, types)
        self._unfinished, self._rows = unfinished, list[Mapping[str, Any]]()
        self._writer: Any = None

    def begin(self, columns: tuple[str, ...]) -> None:
        """Parquet names its columns at the end."""

    def add(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) == _GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write a group of rows."""
        import pyarrow as pa  # takes half a second # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415

        try:
            table = pa.Table.from_pylist(self._rows, self._writer and self._writer.schema)
        except (pa.ArrowException, TypeError) as error:
            problem = "a column has values of several types, for which there are .csv and .jsonl"
            raise UserError(f"{self.path}: {problem}: {error}") from None
        if self._writer is None:
            fields, types = [], {float: pa.float64(), int: pa.int64()}
            for field in table.schema:
                is_empty = pa.types.is_null(field.type)
                kind = types.get(self.types.get(field.name, str), pa.string())
                fields.append(field.with_type(kind) if is_empty else field)
            table = table.cast(pa.schema(fields))
            self._writer = parquet.ParquetWriter(self._unfinished, table.schema)
        self._writer.write_table(table)
        self._rows.clear()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


@contextmanager
def open_table_atomically(
    path: Path, types: Mapping[str, type]
) -> Generator[TableWriter, None, None]:
    """Open a table, by its suffix, that appears at `path` when the block ends; an error leaves no
    file. Raises as `replace_atomically`.

    types: of columns that may be empty at first; by default, they are texts.
    """
    kind = _ParquetTable if path.suffix.lower() == ".parquet" else TableWriter
    with replace_atomically(path) as unfinished, closing(kind(path, unfinished, types)) as writer:
        yield writer
        if isinstance(writer, _ParquetTable):
            writer.flush()


def _to_cell(value: Any) -> str:
    """Return a value as text: as it is, or as JSON; empty for None."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)
