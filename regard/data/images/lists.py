"""Lists of image files with their labels: columns or JSON objects (regard.data.text.rows), plain or
compressed.

    photos/1.png<TAB>cat,dog                           FILE.tsv
    photos/1.png,3.25        photos/2.png,"cat,dog"    FILE.csv, quoted where a comma belongs to a
    column {"file": "photos/1.png", "label": ["cat", "dog"]}  FILE.jsonl
    file,cat,dog             photos/1.png,1,0          FILE.csv, several columns of labels that hold
                             where there is 1

A header with `file` and `label` selects these columns among others, in any order.
"""

from pathlib import Path

from regard.data.bad_rows import BadRows, Skipped
from regard.data.config import ImagesConfig
from regard.data.tables import as_text, locate
from regard.data.text.labels import read_labels
from regard.errors import UserError

FORMATS = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
"""Formats of lists by the suffix of the file."""


def read_image_list(path: Path, config: ImagesConfig) -> tuple[list[tuple[int, str, str]], Skipped]:
    """Return line, file and label of each image, and the skipped lines. Raises UserError naming the
    first bad line."""
    bad_rows = BadRows(config.on_bad, "images")
    table = read_labels(
        path,
        ("file", config.file_column),
        config.label_column,
        target=config.target,
        header=config.header,
        bad_rows=bad_rows,
    )
    rows = []
    for number, cells in table:
        with bad_rows.catch(locate(path, number)):
            rows.append((number, as_text(cells[0]).strip(), as_text(cells[1]).strip()))
    if not rows:
        raise UserError(f"{path}: contains no image. {bad_rows.skipped.describe()}".strip())
    return rows, bad_rows.skipped
