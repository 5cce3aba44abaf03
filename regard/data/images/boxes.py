"""Data sets of images with boxes: COCO JSON, CSV, TSV or JSONL, and images in a folder or a tar.

    file,x,y,width,height,label                       CSV or TSV with a header, a box per line
    filename,width,height,class,xmin,ymin,xmax,ymax   corners, as TensorFlow's tools write; also x1
    {"file": "1.png", "boxes": [{"x":, "y":, "width":, "height":, "label":}]}     JSONL

Boxes are x, y, width, height in pixels from the top left corner of the upright image. They are
clipped to the image.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from regard.data.annotated import Annotated, AnnotatedDataset
from regard.data.bad_rows import BadRows
from regard.data.config import BoxesConfig
from regard.data.images.coco import read_coco_boxes
from regard.data.images.files import ImageFiles
from regard.data.tables import as_text, read_table
from regard.data.text.labels import normalize_label
from regard.errors import UserError
from regard.system.files import plain_name

_MIN_SIDE = 1e-3
"""Pixels; in single precision, the area of a smaller box cannot be distinguished from 0."""
_SIDES = ("x", "y", "width", "height")
_CORNERS = (("xmin", "ymin", "xmax", "ymax"), ("x1", "y1", "x2", "y2"))
_COLUMNS = ("file", *_SIDES, "label")
_MORE_COLUMNS = ("image", "filename", "class", "boxes", *_CORNERS[0], *_CORNERS[1])

_Boxes = dict[str, tuple[str, list[tuple[str, Any, str]]]]
"""Location of each image, by file; location, numbers and label of each of its boxes."""


def read_boxes(
    path: str | Path, images: str | Path | None, config: BoxesConfig
) -> AnnotatedDataset[Image.Image]:
    """Read a file of boxes. Every image is opened once, so that none fails later.

    images: folder or tar of the images; None: the folder of the file.
    Raises: UserError naming the file, the line or the annotation.
    """
    path = Path(path)
    bad_rows = BadRows(config.on_bad, "images and boxes")
    is_coco = plain_name(path).endswith(".json")
    annotations = read_coco_boxes(path, bad_rows) if is_coco else _read(path, config, bad_rows)
    files = ImageFiles(path.parent if images is None else Path(images))
    items: list[Annotated] = []
    for file, (where, rows) in annotations.items():
        size = None
        with bad_rows.catch():
            size = files.read(file, where).size
        if size is None:
            continue
        boxes, labels = [], []
        for place, numbers, label in rows:
            with bad_rows.catch():
                boxes.append(_clip(numbers, size, place))
                labels.append(normalize_label(label))
        array = np.array(boxes, np.float64).reshape(-1, 4)
        items.append(Annotated(file, array, tuple(labels), where))
    if not items:
        raise UserError(f"{path}: contains no usable image. {bad_rows.skipped.describe()}")
    return AnnotatedDataset(
        tuple(items),
        lambda i: files.read(items[i].file, items[i].where),
        str(path),
        bad_rows.skipped,
    )


def _read(path: Path, config: BoxesConfig, bad_rows: BadRows) -> _Boxes:
    """Read a table, whose rows are boxes or (JSONL) images."""
    images: _Boxes = {}
    names = _COLUMNS
    if config.header == "no":
        numbers = [*range(1, 1 + len(names))]
        table = read_table(path, numbers, header="no", bad_rows=bad_rows)
    else:
        names = (*_COLUMNS, *_MORE_COLUMNS)
        table = read_table(path, (), optional=names, header="yes", bad_rows=bad_rows)
    for number, cells in table:
        where = table.where(number)
        with bad_rows.catch(where):
            row = {}
            for name, cell in zip(names, cells, strict=True):
                if cell not in (None, ""):
                    row[name] = cell
            file = as_text(row.get("file") or row.get("image") or row.get("filename")).strip()
            if not file:
                raise UserError(f"{where}: expected the name of an image file, got none.")
            _, boxes = images.setdefault(file, (where, []))
            own = row.pop("boxes", [row])
            if not isinstance(own, list) or not all(isinstance(box, dict) for box in own):
                raise UserError(f"{where}: boxes must be a list of objects, got {own!r:.100}.")
            for box in own:
                if box.keys() - {"file", "image", "filename"}:
                    boxes.append((where, *_parse(box, where)))
    return images


def _parse(row: Mapping[str, Any], where: str) -> tuple[list[float], str]:
    """Return x, y, width and height of a box, and its label."""
    label = as_text(row.get("label", row.get("class"))).strip()
    if not label:
        raise UserError(f"{where}: expected a label, got none.")
    try:
        for names in _CORNERS:
            if names[0] in row:
                left, top, right, bottom = [float(row[name]) for name in names]
                return [left, top, right - left, bottom - top], label
        return [float(row[name]) for name in _SIDES], label
    except (KeyError, TypeError, ValueError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{where}: expected {', '.join(_SIDES)} in numbers: {problem}.") from error


def _clip(numbers: Any, size: tuple[int, int], where: str) -> list[float]:
    """Return a box clipped to an image of this size. Raises UserError if it has no area."""
    try:
        x, y, width, height = map(float, numbers)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: a box must be four numbers, got {numbers!r:.100}.") from error
    left, top = max(x, 0.0), max(y, 0.0)
    right, bottom = min(x + width, float(size[0])), min(y + height, float(size[1]))
    sides = (width, height, right - left, bottom - top)
    if not all(side >= _MIN_SIDE for side in sides):  # also nan
        raise UserError(
            f"{where}: box [{x:g}, {y:g}, {width:g}, {height:g}] has no area inside the image of "
            f"{size[0]} x {size[1]} pixels."
        )
    return [left, top, right - left, bottom - top]
