"""Lists of image files with what is right for each: columns or JSON lines.

    photos/1.png<TAB>cat,dog                           FILE.tsv
    photos/1.png,3.25        photos/2.png,"cat,dog"    FILE.csv, quoted where a comma belongs to a column
    {"file": "photos/1.png", "label": ["cat", "dog"]}  FILE.jsonl

A first line of `file` and `label` is a header, and left out.
"""

import csv
from pathlib import Path

from regard.data.config import ImagesConfig
from regard.data.formats import BadLine, field_of, json_object
from regard.data.lines import not_utf8, read_lines
from regard.errors import UserError

_COLUMNS = ("file", "label")


def read_listed(path: Path, config: ImagesConfig) -> tuple[list[tuple[int, str, str]], list[str]]:
    """The line, file and label of each image, and what was skipped. Raises UserError naming the first bad line."""
    found, skipped = [], []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            file, label = _parsed(line, path.suffix)
        except BadLine as bad:
            if config.on_bad == "error":
                raise UserError(f"{path}, line {number}: {bad.detail}.") from None
            skipped.append(f"{path}, line {number}: {bad.detail}")
            continue
        if (number, file, label) != (1, *_COLUMNS):
            found.append((number, file, label))
    if not found:
        raise UserError(f"{path}: there is no image in it.")
    return found, skipped


def _parsed(line: bytes, suffix: str) -> tuple[str, str]:
    try:
        text = line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise BadLine("not UTF-8", not_utf8(error)) from None
    if suffix == ".jsonl":
        row = json_object(text)
        return field_of(row, "file"), field_of(row, "label", also=(int, float, list))
    try:
        columns = text.split("\t") if suffix == ".tsv" else next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise BadLine("no CSV", f"no row of a CSV file ({error})") from None
    if len(columns) != len(_COLUMNS):
        what = "a tab" if suffix == ".tsv" else "a comma (quote a column that holds one)"
        raise BadLine("wrong number of columns", f"expected file and label with {what} between, got {text[:60]!r}")
    return columns[0].strip(), columns[1].strip()
