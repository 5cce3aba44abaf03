"""Lists of image files with their labels: columns or JSON lines.

    photos/1.png<TAB>cat,dog                           FILE.tsv
    photos/1.png,3.25        photos/2.png,"cat,dog"    FILE.csv, quoted where a comma belongs to a column
    {"file": "photos/1.png", "label": ["cat", "dog"]}  FILE.jsonl

A first line of `file` and `label` is a header.
"""

import csv
from pathlib import Path

from regard.data.config import ImagesConfig
from regard.data.text.lines import describe_decode_error, read_lines
from regard.data.text.records import BadLine, get_field, parse_json_object
from regard.errors import UserError

_COLUMNS = ("file", "label")


def read_image_list(path: Path, config: ImagesConfig) -> tuple[list[tuple[int, str, str]], list[str]]:
    """Return line, file and label of each image, and the skipped lines. Raises UserError naming the first bad line."""
    rows, skipped = [], []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            file, label = _parse(line, path.suffix)
        except BadLine as bad:
            if config.on_bad == "error":
                raise UserError(f"{path}, line {number}: {bad.detail}.") from None
            skipped.append(f"{path}, line {number}: {bad.detail}")
            continue
        if (number, file, label) != (1, *_COLUMNS):
            rows.append((number, file, label))
    if not rows:
        raise UserError(f"{path}: contains no image.")
    return rows, skipped


def _parse(line: bytes, suffix: str) -> tuple[str, str]:
    try:
        text = line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise BadLine("not UTF-8", describe_decode_error(error)) from None
    if suffix == ".jsonl":
        row = parse_json_object(text)
        return get_field(row, "file"), get_field(row, "label", also=(int, float, list))
    try:
        columns = text.split("\t") if suffix == ".tsv" else next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise BadLine("not CSV", f"not a valid row of CSV ({error})") from None
    if len(columns) != len(_COLUMNS):
        separator = "a tab" if suffix == ".tsv" else "a comma (quote columns that contain one)"
        raise BadLine("wrong number of columns", f"expected file and label separated by {separator}, got {text[:60]!r}")
    return columns[0].strip(), columns[1].strip()
