"""COCO's JSON of boxes: images, categories and annotations that name both by their ids.

    {"images": [{"id", "file_name", "width", "height"}], "categories": [{"id", "name"}],
     "annotations": [{"id", "image_id", "category_id", "bbox": [x, y, width, height], "iscrowd"}]}

Ids are whole numbers or texts and must differ; width, height, an annotation's id and iscrowd may be missing. An
annotation with iscrowd = 1 outlines a region of many, no single thing: it is left out, and counted.

Source: T.-Y. Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014 (the format).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.data.boxed import Boxed, boxed, four, label_of, name_of
from regard.errors import UserError
from regard.files import parse_data, read_unpacked

__all__ = ["read_coco"]

_PARTS = {"images": "id, file_name", "categories": "id, name", "annotations": "image_id, category_id, bbox"}
_SHOWN = 60


def read_coco(path: Path) -> Iterator[Boxed]:
    """The images of a file and their boxes. Raises UserError naming the file and the image or annotation."""
    content = parse_data(read_unpacked(path), origin=str(path))
    if not isinstance(content, dict) or not all(isinstance(content.get(part), list) for part in _PARTS):
        wanted = ", ".join(f"{part} ({keys})" for part, keys in _PARTS.items())
        raise UserError(f"{path}: expected COCO's {wanted}.")
    images = _by_id(path, "image", content["images"], "file_name")
    categories = _by_id(path, "category", content["categories"], "name")
    names = {key: label_of(one["name"], where) for key, (one, where) in categories.items()}
    files: dict[str, str] = {}
    for one, where in images.values():
        file = name_of(one["file_name"], where)
        if file in files:
            raise UserError(f"{where}: the file {file[:200]!r} is that of {files[file]} already.")
        files[file] = where.removeprefix(f"{path}, ")
    boxes, left_out = _boxes(path, content["annotations"], images, names)
    for key, (one, where) in images.items():
        yield boxed(one["file_name"], boxes[key], where, size=_size(one, where), left_out=left_out[key])


def _by_id(path: Path, what: str, rows: list[Any], needed: str) -> dict[int | str, tuple[dict[str, Any], str]]:
    """The objects of a list and where they stand, by their ids."""
    found: dict[int | str, tuple[dict[str, Any], str]] = {}
    for place, one in enumerate(rows, start=1):
        where = f"{path}, {what} {place}"
        if not isinstance(one, dict) or not {"id", needed} <= set(one):
            raise UserError(f"{where}: expected an object with id and {needed}, got {repr(one)[:_SHOWN]}.")
        key = _id(one["id"], "id", where)
        if key in found:
            raise UserError(f"{where}: the id {key!r} is that of another {what} already.")
        found[key] = one, where
    return found


def _boxes(
    path: Path, rows: list[Any], images: Mapping[int | str, Any], names: Mapping[int | str, str]
) -> tuple[dict[int | str, list[tuple[list[float], str]]], dict[int | str, list[str]]]:
    """Of each image its boxes with their labels, and what is left out of them."""
    found: dict[int | str, list[tuple[list[float], str]]] = {key: [] for key in images}
    left_out: dict[int | str, list[str]] = {key: [] for key in images}
    seen: set[int | str] = set()
    for place, one in enumerate(rows, start=1):
        where = f"{path}, annotation {place}"
        if not isinstance(one, dict) or not {"image_id", "category_id", "bbox"} <= set(one):
            raise UserError(f"{where}: expected {_PARTS['annotations']}, got {repr(one)[:_SHOWN]}.")
        if "id" in one:
            key = _id(one["id"], "id", where)
            if key in seen:
                raise UserError(f"{where}: the id {key!r} is that of another annotation already.")
            seen.add(key)
        image, category = (_id(one[name], name, where) for name in ("image_id", "category_id"))
        if image not in images:
            raise UserError(f"{where}: there is no image with id {image!r}.")
        if category not in names:
            known = ", ".join(list(names.values())[:20])
            raise UserError(f"{where}: there is no category with id {category!r}; there are {known}.")
        if _is_crowd(one, where):
            left_out[image].append(f"{where}: a region of many (iscrowd), which is no box to learn.")
        else:
            found[image].append((four(one["bbox"], where), names[category]))
    return found, left_out


def _id(given: object, name: str, where: str) -> int | str:
    if isinstance(given, bool) or not isinstance(given, int | str) or (isinstance(given, str) and len(given) > 200):
        raise UserError(f"{where}: {name} must be a whole number or a short text, but is {repr(given)[:_SHOWN]}.")
    return given


def _is_crowd(one: Mapping[str, Any], where: str) -> bool:
    given = one.get("iscrowd", 0)
    if not isinstance(given, int) or given not in (0, 1):
        raise UserError(f"{where}: iscrowd must be 0 or 1, but is {repr(given)[:_SHOWN]}.")
    return bool(given)


def _size(one: Mapping[str, Any], where: str) -> tuple[int, int] | None:
    """Width and height, if both are there."""
    size = one.get("width"), one.get("height")
    if size == (None, None):
        return None
    if not all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in size):
        shown = " x ".join(repr(side)[:_SHOWN] for side in size)
        raise UserError(f"{where}: width and height must be whole numbers above 0, but are {shown}.")
    return size  # pyrefly: ignore[bad-return]
