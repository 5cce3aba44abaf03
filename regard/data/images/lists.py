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
from regard.data.text.headers import Columns
from regard.data.text.lines import locate
from regard.data.text.pairs import combine_targets
from regard.data.text.rows import read_records
from regard.errors import UserError
from regard.system.compression import plain_name

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
    format = FORMATS[Path(plain_name(path)).suffix]
    labels = config.label_column or (None,)
    is_binary = config.target == "labels" and len(labels) > 1
    types = (
        (bool, int, float, list) if config.target == "class" or is_binary else (int, float, list)
    )
    also = {"also": types} if format == "jsonl" else {}
    columns = Columns(
        ("file", *("label" for _ in labels)),
        (config.file_column, *labels),
        config.header,
        has_options=True,
        is_numeric=config.target == "number" or is_binary,
    )
    records = read_records(path, format, columns, **also)
    rows, bad_rows = [], BadRows(config.on_bad)
    for number, row in records.rows:
        with bad_rows.catch(locate(path, number)):
            file, label = combine_targets(records.parse(row), records, is_binary=is_binary)
            rows.append((number, file.strip(), label.strip()))
    if not rows:
        raise UserError(
            "\n".join(filter(None, [f"{path}: contains no image.", bad_rows.skipped.describe()]))
        )
    return rows, bad_rows.skipped
