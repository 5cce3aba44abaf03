"""Data sets of images with boxes; docs/recipes/boxes.md describes the files.

Boxes are x, y, width, height in pixels from the top left corner of the upright image.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from regard.data.annotated import MIN_SIDE, AnnotatedDataset, read_annotated
from regard.data.bad_rows import BadRows
from regard.data.config import BoxesConfig
from regard.data.formats.boxes import read_box_format
from regard.data.images.files import open_images
from regard.data.tables import as_number, read_rows_of_files
from regard.errors import UserError

_SIDES = ("x", "y", "width", "height")
_CORNERS = (("xmin", "ymin", "xmax", "ymax"), ("x1", "y1", "x2", "y2"))
_MORE_COLUMNS = ("class", "boxes", *_CORNERS[0], *_CORNERS[1])


def read_boxes(
    path: str | Path, images: str | Path | None, config: BoxesConfig, split: str = "train"
) -> AnnotatedDataset[Image.Image]:
    """Read a file of boxes. Every image, in a folder or tar (None: that of the format), is opened
    once, so that none fails later. Raises UserError naming the file and the line.

    split: part of a file that has several: train, val or test.
    """
    path = Path(path)
    bad_rows = BadRows(config.on_bad, "images and boxes")
    found = read_box_format(path, config.format, split, bad_rows)
    if found is None:
        columns = (*_SIDES, "label")
        found = read_rows_of_files(path, columns, config, bad_rows, more=_MORE_COLUMNS), path.parent
    by_file, folder = found
    read_image = open_images(folder if images is None else Path(images))

    def measure(file: str) -> tuple[int, int]:
        if images is None and not (folder / file).exists():
            raise UserError(f"{folder / file}: no such file (--data.images chooses the folder)")
        size = read_image(file).size
        for _, row in by_file[file]:
            _check_size(row, size)
        return size

    items, _ = read_annotated(path, by_file, measure, _parse, sides=4, bad_rows=bad_rows)
    return AnnotatedDataset(
        tuple(items), lambda i: read_image(items[i].file), str(path), bad_rows.notices(path)
    )


def _check_size(row: Mapping[str, Any], size: tuple[int, int]) -> None:
    """Raise UserError if a row of corners or `bbox` states another size of its image, as if it was
    scaled, or rotated by its EXIF orientation, after the boxes were drawn."""
    if "bbox" in row or any(names[0] in row for names in _CORNERS):
        stated = [as_number(row.get(name) or 0) for name in ("width", "height")]
        if 0 not in stated and (*stated,) != size:
            other, own = f"{stated[0]:g} x {stated[1]:g}", f"{size[0]} x {size[1]}"
            raise UserError(f"boxes of {other} pixels, but the upright image has {own}")


def _parse(row: Mapping[str, Any], size: tuple[int, int]) -> list[float]:
    """Return a box. Raises UserError if it has no area inside an image of this size."""
    corners = next((names for names in _CORNERS if names[0] in row), None)
    try:
        if corners is None:
            sides = row.get("bbox") or [row[name] for name in _SIDES]
            x, y, width, height = [float(side) for side in sides]
        else:
            x, y, end, bottom = [float(row[name]) for name in corners]
            width, height = end - x, bottom - y
        if row.get("is_relative"):
            x, y, width, height = x * size[0], y * size[1], width * size[0], height * size[1]
    except (KeyError, TypeError, ValueError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"expected {', '.join(corners or _SIDES)} in numbers: {problem}") from error
    wide = min(x + width, float(size[0])) - max(x, 0.0)
    high = min(y + height, float(size[1])) - max(y, 0.0)
    if not all(side >= MIN_SIDE for side in (width, height, wide, high)):  # also nan
        image = f"the image of {size[0]} x {size[1]} pixels"
        raise UserError(f"box [{x:g}, {y:g}, {width:g}, {height:g}] has no area inside {image}")
    return [x, y, width, height]
