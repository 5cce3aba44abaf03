"""Data sets of images with boxes; docs/recipes/boxes.md describes the files.

Boxes are x, y, width, height in pixels from the top left corner of the upright image. They are
clipped to the image.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from regard.data.annotated import Annotated, AnnotatedDataset
from regard.data.bad_rows import BadRows
from regard.data.config import BoxesConfig
from regard.data.images.coco import read_coco_boxes
from regard.data.images.files import ImageFiles
from regard.data.tables import as_text, read_rows_of_files
from regard.data.text.labels import normalize_label
from regard.errors import UserError
from regard.system.files import plain_name

_MIN_SIDE = 1e-3
"""Pixels; in single precision, the area of a smaller box cannot be distinguished from 0."""
_SIDES = ("x", "y", "width", "height")
_CORNERS = (("xmin", "ymin", "xmax", "ymax"), ("x1", "y1", "x2", "y2"))
_MORE_COLUMNS = ("class", "boxes", *_CORNERS[0], *_CORNERS[1])


def read_boxes(
    path: str | Path, images: str | Path | None, config: BoxesConfig
) -> AnnotatedDataset[Image.Image]:
    """Read a file of boxes. Every image, in a folder or tar (None: the folder of the file), is
    opened once, so that none fails later. Raises UserError naming the file and the line."""
    path = Path(path)
    bad_rows = BadRows(config.on_bad, "images and boxes")
    if plain_name(path).endswith(".json"):
        by_file = read_coco_boxes(path, bad_rows)
    else:
        by_file = read_rows_of_files(
            path, (*_SIDES, "label"), _MORE_COLUMNS, header=config.header, bad_rows=bad_rows
        )
    files = ImageFiles(path.parent if images is None else Path(images))
    items: list[Annotated] = []
    for file, rows in by_file.items():
        first, size = rows[0][0], None
        with bad_rows.catch(first):
            size = files.read(file).size
        if size is None:
            continue
        boxes, labels = [], []
        for where, row in rows:
            found = row.get("boxes", [row] if row else [])  # a row of JSONL may have a list
            if not isinstance(found, list) or not all(isinstance(box, dict) for box in found):
                bad_rows.add(f"{where}: boxes must be a list of objects, got {found!r:.100}")
                continue
            for box in found:
                with bad_rows.catch(where):
                    numbers, label = _parse(box)
                    boxes.append(_clip(numbers, size))
                    labels.append(label)
        array = np.array(boxes, np.float64).reshape(-1, 4)
        items.append(Annotated(file, array, tuple(labels), first))
    if not items:
        raise UserError(f"{path}: contains no usable image. {bad_rows.describe()}")
    return AnnotatedDataset(
        tuple(items), lambda i: files.read(items[i].file), str(path), bad_rows.skipped
    )


def _parse(row: Mapping[str, Any]) -> tuple[list[float], str]:
    """Return x, y, width and height of a box, and its label."""
    label = as_text(row.get("label", row.get("class"))).strip()
    if not label:
        raise UserError("expected a label, got none")
    label = normalize_label(label)
    try:
        for names in _CORNERS:
            if names[0] in row:
                left, top, right, bottom = [float(row[name]) for name in names]
                return [left, top, right - left, bottom - top], label
        x, y, width, height = row.get("bbox") or [row[name] for name in _SIDES]
        return [float(x), float(y), float(width), float(height)], label
    except (KeyError, TypeError, ValueError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"expected {', '.join(_SIDES)} in numbers: {problem}") from error


def _clip(box: Sequence[float], size: tuple[int, int]) -> list[float]:
    """Return a box clipped to an image of this size. Raises UserError if it has no area."""
    x, y, width, height = box
    left, top = max(x, 0.0), max(y, 0.0)
    right, bottom = min(x + width, float(size[0])), min(y + height, float(size[1]))
    sides = (width, height, right - left, bottom - top)
    if not all(side >= _MIN_SIDE for side in sides):  # also nan
        image = f"the image of {size[0]} x {size[1]} pixels"
        raise UserError(f"box [{x:g}, {y:g}, {width:g}, {height:g}] has no area inside {image}")
    return [left, top, right - left, bottom - top]
