"""Data sets of images with boxes: annotations in COCO JSON, CSV, TSV or JSONL, and images in a
folder or a tar.

    file,x,y,width,height,label                           CSV or TSV with a header, a box in each
    line filename,width,height,class,xmin,ymin,xmax,ymax       the same with corners, also
    x1,y1,x2,y2; width and height,
                                                          those of the image, may be missing
                                                          (TensorFlow's)

Boxes are x, y, width, height in pixels from the top left corner of the image, after its EXIF
orientation is applied. If the file states the size of the image before the rotation, its boxes are
rotated, too. If the size does not decide (none is stated, or it is the same before and after),
boxes are taken to refer to the upright image, as in annotation tools, OpenCV and detectron2, and a
notice says so.

Unusable data is reported before training: boxes without area or outside their image, images that
are missing or cannot be read, unknown categories, coordinates relative to the size of the image.
Boxes that extend over the edge of the image are clipped and, if by more than a pixel, counted.

Source: T.-Y. Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014 (the format).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from regard.data.annotated import AnnotatedDataset
from regard.data.bad_rows import BadRows
from regard.data.config import BoxesConfig, Header
from regard.data.images.annotations import (
    MOST_PIXELS,
    AnnotatedImage,
    annotate_image,
    parse_box,
    parse_file_name,
    parse_label,
)
from regard.data.images.coco import read_coco
from regard.data.images.files import ImageFiles, UprightImage, find_images, open_first
from regard.data.text.label_normalizer import LabelNormalizer
from regard.data.text.lines import check_kind, has_array, locate, read_objects
from regard.data.text.numbers import parse_numbers
from regard.data.text.rows import read_table
from regard.errors import UserError
from regard.system.compression import plain_name
from regard.system.files import decode_json
from regard.system.terminal import format_count

_LEAST_SIDE = 1e-3
"""Pixels; in single precision, the area of a smaller box cannot be distinguished from 0."""
_LARGEST_OVERHANG = 1.0
"""Pixels; boxes that extend further over the edge of their image are reported."""
_COLUMNS = (
    "file|image|filename",
    "x|x1|xmin",
    "y|y1|ymin",
    "width|x2|xmax",
    "height|y2|ymax",
    "label|class",
)
_NUMBERS = ("x", "y", "width", "height")
_CORNERS = (("xmin", "ymin", "xmax", "ymax"), ("x1", "y1", "x2", "y2"))
_ROTATED = "and the sizes in the file are those before the rotation: the boxes were rotated, too"
_ASSUMED = "and the file does not tell whether boxes refer to the image before or after rotation: after is assumed"


def read_boxes(
    path: str | Path,
    images: str | Path | None,
    config: BoxesConfig,
    *,
    option: str = "--data.images",
) -> AnnotatedDataset[Image.Image]:
    """Read a file of boxes. Every image is opened once, so that none fails later.

    option: the option that names `images`, for messages.
    Raises: UserError naming the file, the line or the annotation, what was expected and what was
            found.
    """
    path = Path(path)
    suffix = plain_name(path).rsplit(".", 1)[-1]
    read_rows = partial(_read_table, header=config.header)
    readers = {
        "json": _read_json,
        "csv": read_rows,
        "tsv": read_rows,
        "jsonl": _read_objects,
        "ndjson": _read_objects,
    }
    if suffix not in readers or path.is_dir():
        expected = f"boxes in a file of .json (COCO or an array), .csv, .tsv or .jsonl ({option} names their images)"
        check_kind(path, expected)
        raise UserError(f"{path}: expected {expected}, got {path.name!r}.")
    bad_rows = BadRows(config.on_bad, "images and boxes")
    normalizer = LabelNormalizer()
    annotations = [
        replace(item, labels=tuple(normalizer[label] for label in item.labels))
        for item in readers[suffix](path, bad_rows)
    ]
    normalizer.warn(str(path))
    _check_pixels(path, annotations)
    sources = find_images(path, images, option=option)
    checked: list[tuple[AnnotatedImage, ImageFiles]] = []
    sized: list[tuple[AnnotatedImage, tuple[int, int]]] = []
    notes: dict[str, list[str]] = {}
    for item in annotations:
        opened = _open(item, sources, bad_rows)
        if opened is not None:
            upright, source, size, note = opened
            checked.append((_clip(upright, size, bad_rows), source))
            sized.append((upright, size))
            if note and len(item.boxes):
                notes.setdefault(note, []).append(item.file[:200])
    if not checked:
        reason = (
            f" that can be used; first problem: {bad_rows.skipped[0]}" if bad_rows.skipped else "."
        )
        raise UserError(f"{path}: contains no image{reason}")
    items = tuple(item for item, _ in checked)
    return AnnotatedDataset(
        items,
        lambda i: checked[i][1].open(items[i].file, items[i].where).image,
        str(path),
        bad_rows.skipped,
        (
            *_describe_overhang(path, sized),
            *(
                f"{path}: {format_count(len(files), 'image')} with an EXIF orientation, {note}; "
                f"first: {files[0]}."
                for note, files in notes.items()
            ),
        ),
    )


def rotate_boxes(boxes: NDArray[np.float64], image: UprightImage) -> NDArray[np.float64]:
    """Convert boxes (boxes, 4) of an image as stored to boxes of the upright image.

        x, y, width, height -> y, x, height, width, mirrored in x for orientations 6 and 7, in y for
        7 and 8

    image: the image, whose EXIF orientation exchanges width and height (5 to 8).
    """
    rotated = boxes[:, [1, 0, 3, 2]].copy()
    if image.orientation in (6, 7):
        rotated[:, 0] = image.image.width - rotated[:, 0] - rotated[:, 2]
    if image.orientation in (7, 8):
        rotated[:, 1] = image.image.height - rotated[:, 1] - rotated[:, 3]
    return rotated


def _open(
    item: AnnotatedImage, sources: Sequence[ImageFiles], bad_rows: BadRows
) -> tuple[AnnotatedImage, ImageFiles, tuple[int, int], str] | None:
    """Return the item with boxes of the upright image, its source, its size and a remark; None if
    it is skipped."""
    with bad_rows.catch():
        source, image = open_first(sources, item.file, item.where)
        upright, stored = image.image.size, image.stored_size
        if item.size not in (None, upright, stored):
            stated = " x ".join(map(str, item.size or ()))
            actual = image.describe_size()
            raise UserError(
                f"{item.where}: states {stated} pixels for {item.file[:200]}, but the image has "
                f"{actual}."
            )
        if item.size is None or upright == stored:
            return item, source, upright, "" if image.orientation == 1 else _ASSUMED
        if item.size == upright:
            return item, source, upright, ""
        return replace(item, boxes=rotate_boxes(item.boxes, image)), source, upright, _ROTATED
    return None


def _check_pixels(path: Path, items: Sequence[AnnotatedImage]) -> None:
    """Raise UserError if the boxes are relative to the size of their image: several, and all within
    [0, 1]."""
    boxes = np.concatenate([item.boxes for item in items]) if items else np.zeros((0, 4))
    if len(boxes) < 2 or boxes.min() < 0 or boxes.max() > 1 or not (boxes % 1).any():
        return
    first = next(item for item in items if len(item.boxes))
    shown = ", ".join(f"{number:g}" for number in first.boxes[0])
    raise UserError(
        f"{first.where}: expected boxes in pixels, but all {len(boxes):,} boxes of {path} lie "
        f"between 0 and 1, here "
        f"[{shown}]. Relative coordinates must be converted: multiply x and width by the width of "
        f"the image, y and "
        "height by its height."
    )


def _describe_overhang(
    path: Path, items: Sequence[tuple[AnnotatedImage, tuple[int, int]]]
) -> list[str]:
    """Return a notice if boxes extend over the edge of their image (by more than a pixel), for they
    are clipped."""
    count, places, are_corners = 0, list[str](), True
    for item, size in items:
        starts, sides = item.boxes[:, :2], item.boxes[:, 2:]
        most = np.array(size) + _LARGEST_OVERHANG
        extends = (starts < -_LARGEST_OVERHANG).any(1) | (starts + sides > most).any(1)
        count += len(item.boxes)
        places += [
            f"{item.where}, [{x:g}, {y:g}, {w:g}, {h:g}]"
            for x, y, w, h in item.boxes[extends].tolist()
        ]
        are_corners &= bool((sides > starts).all() and (sides <= most).all())
    if not places:
        return []
    notice = f"{path}: {len(places):,} of {count:,} boxes extend beyond their image and are clipped; first: {places[0]}"
    if 2 * len(places) > count and are_corners:
        names = ("file", *_CORNERS[0], "label")
        is_table = plain_name(path).endswith((".csv", ".tsv"))
        way = (
            f"give the header {','.join(names)}"
            if is_table
            else "subtract x from the third number and y from the fourth"
        )
        notice += (
            f". They may be corners x1, y1, x2, y2, expected are x, y, width, height: if so, {way}"
        )
    return [f"{notice}."]


def _clip(item: AnnotatedImage, size: tuple[int, int], bad_rows: BadRows) -> AnnotatedImage:
    """Return the item with its boxes clipped to an image of this size; boxes without area are
    skipped."""
    keep, labels = [], []
    width, height = size
    for (x, y, w, h), label in zip(item.boxes.tolist(), item.labels, strict=True):
        left, top, right, bottom = (
            max(x, 0.0),
            max(y, 0.0),
            min(x + w, float(width)),
            min(y + h, float(height)),
        )
        shown = (
            f"{item.where}: box [{x:g}, {y:g}, {w:g}, {h:g}] ({label[:60]}) of {item.file[:200]}"
        )
        with bad_rows.catch():
            if w < _LEAST_SIDE or h < _LEAST_SIDE:
                raise UserError(
                    f"{shown} has no area: width and height must be above 0 (at least "
                    f"{_LEAST_SIDE:g})."
                )
            if right - left < _LEAST_SIDE or bottom - top < _LEAST_SIDE:
                raise UserError(f"{shown} lies outside the image of {width} x {height} pixels.")
            keep.append((left, top, right - left, bottom - top))
            labels.append(label)
    return replace(item, boxes=np.array(keep, np.float64).reshape(-1, 4), labels=tuple(labels))


def _read_table(path: Path, bad_rows: BadRows, header: Header) -> list[AnnotatedImage]:
    boxes_of: dict[str, list[tuple[list[float], str]]] = {}
    first_line: dict[str, str] = {}
    sizes: dict[str, tuple[int, int] | None] = {}
    records = read_table(path, _COLUMNS, numeric=(*_NUMBERS, *chain(*_CORNERS)), header=header)
    names = [name for column in _COLUMNS for name in column.split("|")]
    for number, row in records.rows:
        where = locate(path, number)
        with bad_rows.catch(where):
            cells = dict(zip(names, records.parse(row), strict=True))
            file = cells["file"] or cells["image"] or cells["filename"]
            label, box, size = (
                cells["label"] or cells["class"],
                [cells[name] for name in _NUMBERS],
                None,
            )
            for own in _CORNERS:
                if any(cells[name] for name in own):
                    size, box = _image_size(box[2], box[3], where), _from_corners(cells, own, where)
                    break
            if not file:
                raise UserError(f"{where}: expected the name of an image file, got none.")
            boxes = boxes_of.setdefault(file, [])
            first_line.setdefault(file, where)
            sizes[file] = sizes.get(file) or size
            if any(box) or label:
                boxes.append((parse_box(box, where), parse_label(label, where)))
    return [
        annotate_image(file, boxes, first_line[file], size=sizes.get(file))
        for file, boxes in boxes_of.items()
    ]


def _from_corners(cells: Mapping[Any, str], names: Sequence[str], where: str) -> list[Any]:
    """Return x, y, width and height of a box from the cells of its left, top, right and bottom."""
    corners = parse_numbers([cells[name] for name in names], most=MOST_PIXELS)
    if len(corners) != len(names):
        shown = ", ".join(cells[name] for name in names)[:100]
        raise UserError(
            f"{where}: expected {', '.join(names)}, four numbers of at most {MOST_PIXELS:g}, got "
            f"{shown}."
        )
    left, top, right, bottom = corners
    return [left, top, right - left, bottom - top]


def _image_size(width: str, height: str, where: str) -> tuple[int, int] | None:
    """Return the stated size of an image, or None if there is none."""
    if not (width or height):
        return None
    size = parse_numbers((width, height), most=MOST_PIXELS)
    if len(size) != 2 or min(size) < 1 or any(side % 1 for side in size):
        shown = f"{width[:60]!r} x {height[:60]!r}"
        raise UserError(
            f"{where}: width and height of the image must be integers above 0, got {shown}."
        )
    return int(size[0]), int(size[1])


def _read_json(path: Path, bad_rows: BadRows) -> list[AnnotatedImage]:
    return (_read_objects if has_array(path) else read_coco)(path, bad_rows)


def _read_objects(path: Path, bad_rows: BadRows) -> list[AnnotatedImage]:
    images: dict[str, AnnotatedImage] = {}
    for number, line in read_objects(path):
        where = locate(path, number)
        with bad_rows.catch():
            try:
                content = decode_json(line.decode("utf-8"))
                file = content["file"]
                rows = [
                    ([box[name] for name in _NUMBERS], box["label"]) for box in content["boxes"]
                ]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                expected = '{"file":, "boxes": [{x, y, width, height, label}]}'
                problem = f"{type(error).__name__}: {str(error)[:100]}"
                raise UserError(f"{where}: expected {expected} ({problem}).") from error
            parse_file_name(file, where)
            if file in images:
                earlier = images[file].where.removeprefix(f"{path}, ")
                raise UserError(f"{where}: the image {file[:200]!r} is already in {earlier}.")
            images[file] = annotate_image(
                file,
                [(parse_box(box, where), parse_label(label, where)) for box, label in rows],
                where,
            )
    return list(images.values())
