"""Source texts of files of pairs or labeled texts: the column of the source, with or without the
other columns."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from regard.data.bad_rows import BadRow
from regard.data.config import Header, TextsFormat
from regard.data.text.headers import Columns
from regard.data.text.lines import locate
from regard.data.text.rows import read_records
from regard.system.compression import plain_name

_FORMATS = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}


class Source(NamedTuple):
    """Source text, and the number of its line or row."""

    line: int
    text: str
    problem: str = ""
    """Reason why the line has no text."""


def read_sources(
    path: Path,
    name: str,
    *,
    column: int | str | None = None,
    most: int | None = None,
    header: Header = "auto",
    format: TextsFormat = "auto",
) -> Iterator[Source]:
    """Yield the source texts of a TSV, CSV or JSONL file; other columns are ignored.

    name:   expected name of the column or field; the first column without such a header.
    column: the one chosen.
    most:   largest number of columns of a file without a header of which none is chosen.
    format: auto: by the suffix.
    Raises: UserError naming the file if no line of it can be read.
    """
    found = _FORMATS[Path(plain_name(path)).suffix] if format == "auto" else format
    columns = Columns((name,), (column,), header=header, has_options=True, is_open=True, most=most)
    records = read_records(path, found, columns)
    for number, row in records.rows:
        try:
            (text,) = records.parse(row)
        except BadRow as bad:
            yield Source(number, "", f"{locate(path, number)}: {bad.detail}")
        else:
            yield Source(number, text)
