"""Source texts of files of pairs or labeled texts: one column of a table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.bad_rows import BadRows
from regard.data.config import Header, TableFormat
from regard.data.tables import as_text, read_table


class Source(NamedTuple):
    """Source text, and the number of its row (0 if it cannot be read)."""

    line: int
    text: str
    problem: str = ""
    """Reason why the row has no text."""


def read_sources(
    path: Path,
    name: str,
    *,
    column: int | str | None = None,
    header: Header = "auto",
    format: TableFormat = "auto",
    **_unused: Any,
) -> Iterator[Source]:
    """Yield the texts of a column; other columns are ignored.

    name:   usual name of the column; without it, the first is read.
    column: the one chosen.
    """
    bad_rows = BadRows("skip")
    table = read_table(
        path,
        [column or name],
        header=header,
        by_position=column is None,
        format=format,
        bad_rows=bad_rows,
    )
    for problem, row in bad_rows.in_order(table):
        if row is None:
            yield Source(0, "", problem)
        else:
            yield Source(row[0], as_text(row[1][0]))
