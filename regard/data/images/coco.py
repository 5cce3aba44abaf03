"""Annotations in COCO's JSON format: images, categories, and annotations that refer to both by id.

    {"images": [{"id", "file_name", "width", "height"}], "categories": [{"id", "name"}],
     "annotations": [{"image_id", "category_id", "bbox": [x, y, width, height], "iscrowd"}]}
     boxes
    {"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}
    captions

Ids are integers (1 and 1.0 are the same id) or strings (1 and "1" are different ids, as in
pycocotools). An image or category may occur twice if both entries agree. Width, height and iscrowd
may be missing; the ids of annotations are ignored. An annotation with iscrowd = 1 covers a group of
objects, not a single one: it is left out and counted.

Source: T.-Y. Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014 (the format).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.bad_rows import BadRows
from regard.data.images.annotations import (
    AnnotatedImage,
    Caption,
    CaptionedFile,
    annotate_image,
    parse_box,
    parse_caption,
    parse_file_name,
    parse_label,
)
from regard.data.text.numbers import parse_number
from regard.errors import UserError
from regard.system.files import parse_data, read_unpacked

_PARTS = {
    "images": "id, file_name",
    "categories": "id, name",
    "annotations": "image_id, category_id, bbox",
}
_CAPTION_PARTS = {"images": "id, file_name", "annotations": "image_id, caption"}
_SHOWN = 60
_MOST_EXACT = 2**53
"""Above this, several integers round to the same floating-point number."""
_MOST_SIDE = 10**9

Id = int | str


def read_coco(path: Path, bad_rows: BadRows) -> list[AnnotatedImage]:
    """Read the images of a file and their boxes.

    bad_rows: collects the annotations that cannot be used.
    Raises:  UserError naming the file and the image or annotation.
    """
    content = _read_parts(path, _PARTS)
    images = _by_id(path, "image", content["images"], ("file_name", "width", "height"))
    categories = _by_id(path, "category", content["categories"], ("name",))
    names = {
        key: parse_label(category["name"], where) for key, (category, where) in categories.items()
    }
    _check_files(path, images)
    boxes: dict[Id, list[tuple[list[float], str]]] = {key: [] for key in images}
    for number, annotation in enumerate(content["annotations"], start=1):
        where = f"{path}, annotation {number}"
        with bad_rows.catch():
            image, category = _ids(annotation, where)
            _check_known("image", image, boxes, where)
            _check_known("category", category, names, where)
            if _is_crowd(annotation, where):
                bad_rows.leave_out(
                    f"{where}: covers a group of objects (iscrowd = 1), which is not used.", "group"
                )
            else:
                boxes[image].append((_box(annotation, where), names[category]))
    return [
        annotate_image(row["file_name"], boxes[key], where, size=_size(row, where))
        for key, (row, where) in images.items()
    ]


def read_coco_captions(path: Path, bad_rows: BadRows) -> list[CaptionedFile]:
    """Read the images of a file and their captions.

    bad_rows: collects the annotations that cannot be used, and the images without a caption.
    Raises:  UserError naming the file and the image or annotation.
    """
    content = _read_parts(path, _CAPTION_PARTS)
    images = _by_id(path, "image", content["images"], ("file_name",))
    _check_files(path, images)
    captions: dict[Id, list[Caption]] = {key: [] for key in images}
    for number, annotation in enumerate(content["annotations"], start=1):
        where = f"{path}, annotation {number}"
        with bad_rows.catch():
            if not isinstance(annotation, dict) or not {"image_id", "caption"} <= set(annotation):
                raise UserError(
                    f"{where}: expected {_CAPTION_PARTS['annotations']}, got "
                    f"{repr(annotation)[:_SHOWN]}."
                )
            image = _id(annotation["image_id"], "image_id", where)
            _check_known("image", image, captions, where)
            captions[image].append(parse_caption(annotation["caption"], where))
    files = []
    for key, (row, where) in images.items():
        with bad_rows.catch():
            if not captions[key]:
                raise UserError(f"{where}: the image {row['file_name'][:200]!r} has no caption.")
            files.append(CaptionedFile(row["file_name"], tuple(captions[key]), where))
    return files


def _read_parts(path: Path, parts: Mapping[str, str]) -> dict[str, list[Any]]:
    """Return the content of a file, an object with a list for each of these parts."""
    content = parse_data(read_unpacked(path), origin=str(path))
    if not isinstance(content, dict) or not all(
        isinstance(content.get(part), list) for part in parts
    ):
        expected = ", ".join(f"{part} ({keys})" for part, keys in parts.items())
        raise UserError(f"{path}: expected COCO's {expected}.")
    return content


def _check_files(path: Path, images: Mapping[Id, tuple[dict[str, Any], str]]) -> None:
    """Raise UserError for an image whose file is not named, or is that of another image."""
    files: dict[str, str] = {}
    for row, where in images.values():
        file = parse_file_name(row["file_name"], where)
        if file in files:
            raise UserError(f"{where}: the file {file[:200]!r} is already used by {files[file]}.")
        files[file] = where.removeprefix(f"{path}, ")


def _by_id(
    path: Path, noun: str, rows: list[Any], keys: tuple[str, ...]
) -> dict[Id, tuple[dict[str, Any], str]]:
    """Return the objects of a list and their locations, by id. The first of `keys` is required."""
    objects: dict[Id, tuple[dict[str, Any], str]] = {}
    for number, row in enumerate(rows, start=1):
        where = f"{path}, {noun} {number}"
        if not isinstance(row, dict) or not {"id", keys[0]} <= set(row):
            raise UserError(
                f"{where}: expected an object with id and {keys[0]}, got {repr(row)[:_SHOWN]}."
            )
        key = _id(row["id"], "id", where)
        if key in objects and [row.get(name) for name in keys] != [
            objects[key][0].get(name) for name in keys
        ]:
            raise UserError(f"{where}: the id {key!r} is already used by another {noun}.")
        objects.setdefault(key, (row, where))
    return objects


def _ids(annotation: object, where: str) -> tuple[Id, Id]:
    """Return the ids of the image and of the category of an annotation."""
    if not isinstance(annotation, dict) or not {"image_id", "category_id"} <= set(annotation):
        raise UserError(
            f"{where}: expected {_PARTS['annotations']}, got {repr(annotation)[:_SHOWN]}."
        )
    return _id(annotation["image_id"], "image_id", where), _id(
        annotation["category_id"], "category_id", where
    )


def _box(annotation: Mapping[str, Any], where: str) -> list[float]:
    """Return the box of an annotation, or that around its polygons if it has none."""
    if annotation.get("bbox") is not None:
        return parse_box(annotation["bbox"], where)
    polygons = annotation.get("segmentation")
    if not isinstance(polygons, list) or not all(isinstance(polygon, list) for polygon in polygons):
        raise UserError(f"{where}: must have a bbox, or a segmentation that is a list of polygons.")
    numbers = [parse_number(number, most=_MOST_SIDE) for polygon in polygons for number in polygon]
    if not numbers or None in numbers or any(len(polygon) % 2 for polygon in polygons):
        raise UserError(
            f"{where}: the polygons of its segmentation must be lists of x1, y1, x2, y2 ..."
        )
    x, y = np.array([number for polygon in polygons for number in polygon], float).reshape(-1, 2).T
    return parse_box([float(x.min()), float(y.min()), float(np.ptp(x)), float(np.ptp(y))], where)


def _check_known(noun: str, key: Id, known: Mapping[Id, object], where: str) -> None:
    if key in known:
        return
    other = (
        str(key)
        if isinstance(key, int)
        else int(key)
        if key.isascii() and key.isdecimal()
        else None
    )
    if other is not None and other in known:
        raise UserError(
            f"{where}: there is no {noun} with id {key!r}, only {other!r}: a number and a string "
            f"are different ids."
        )
    shown = (
        f"; known are {', '.join(map(str, list(known.values())[:20]))}"
        if noun == "category"
        else ""
    )
    raise UserError(f"{where}: there is no {noun} with id {key!r}{shown}.")


def _id(value: object, name: str, where: str) -> Id:
    if isinstance(value, float) and value.is_integer() and abs(value) < _MOST_EXACT:
        return int(value)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | str)
        or (isinstance(value, str) and len(value) > 200)
    ):
        raise UserError(
            f"{where}: {name} must be an integer or a short string, got {repr(value)[:_SHOWN]}."
        )
    return value


def _is_crowd(annotation: Mapping[str, Any], where: str) -> bool:
    value = annotation.get("iscrowd")
    flag = (
        float(value)
        if isinstance(value, bool)
        else parse_number(0 if value is None else value, most=1)
    )
    if flag not in (0, 1):
        raise UserError(f"{where}: iscrowd must be 0 or 1, got {repr(value)[:_SHOWN]}.")
    return bool(flag)


def _size(row: Mapping[str, Any], where: str) -> tuple[int, int] | None:
    """Return the stated width and height of an image, or None if both are missing, or 0 as some
    tools write then."""
    sides = row.get("width"), row.get("height")
    if sides in ((None, None), (0, 0)):
        return None
    width, height = (parse_number(side, most=_MOST_SIDE) or 0 for side in sides)
    if width < 1 or height < 1 or width % 1 or height % 1:
        shown = " x ".join(repr(side)[:_SHOWN] for side in sides)
        raise UserError(f"{where}: width and height must be integers above 0, got {shown}.")
    return int(width), int(height)
