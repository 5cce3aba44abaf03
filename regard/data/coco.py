"""COCO's JSON of boxes: images, categories and annotations that name both by their ids.

    {"images": [{"id", "file_name", "width", "height"}], "categories": [{"id", "name"}],
     "annotations": [{"image_id", "category_id", "bbox": [x, y, width, height], "iscrowd"}]}

Ids are whole numbers (1 and 1.0 are one id) or texts (1 and "1" are two ids, as in pycocotools). An image or a category
that is given twice must be the same both times. Width, height and iscrowd may be missing; annotations' own ids are not
read. An annotation with iscrowd = 1 outlines a region of many, no single thing: it is left out, and counted.

Source: T.-Y. Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014 (the format).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.data.boxed import Boxed, LeftOut, boxed, four, label_of, name_of
from regard.data.numbers import number
from regard.errors import UserError
from regard.files import parse_data, read_unpacked

_PARTS = {"images": "id, file_name", "categories": "id, name", "annotations": "image_id, category_id, bbox"}
_SHOWN = 60
_MOST_EXACT = 2**53
"""Up to here a floating number is one whole number, and not the nearest to several."""
_MOST_SIDE = 10**9

Id = int | str


def read_coco(path: Path, left_out: LeftOut) -> list[Boxed]:
    """Return the images of a file and their boxes.

    left_out: takes the annotations that cannot be used.
    Raises:   UserError naming the file and the image or annotation.
    """
    content = parse_data(read_unpacked(path), origin=str(path))
    if not isinstance(content, dict) or not all(isinstance(content.get(part), list) for part in _PARTS):
        wanted = ", ".join(f"{part} ({keys})" for part, keys in _PARTS.items())
        raise UserError(f"{path}: expected COCO's {wanted}.")
    images = _by_id(path, "image", content["images"], ("file_name", "width", "height"))
    categories = _by_id(path, "category", content["categories"], ("name",))
    names = {key: label_of(one["name"], where) for key, (one, where) in categories.items()}
    files: dict[str, str] = {}
    for one, where in images.values():
        file = name_of(one["file_name"], where)
        if file in files:
            raise UserError(f"{where}: the file {file[:200]!r} is that of {files[file]} already.")
        files[file] = where.removeprefix(f"{path}, ")
    boxes: dict[Id, list[tuple[list[float], str]]] = {key: [] for key in images}
    for place, one in enumerate(content["annotations"], start=1):
        where = f"{path}, annotation {place}"
        with left_out.checking():
            image, category = _ids(one, where)
            _check_known("image", image, boxes, where)
            _check_known("category", category, names, where)
            if _is_crowd(one, where):
                left_out.reasons.append(f"{where}: a region of many (iscrowd), which is no box to learn.")
            else:
                boxes[image].append((four(one["bbox"], where), names[category]))
    return [boxed(one["file_name"], boxes[key], where, size=_size(one, where)) for key, (one, where) in images.items()]


def _by_id(path: Path, what: str, rows: list[Any], keys: tuple[str, ...]) -> dict[Id, tuple[dict[str, Any], str]]:
    """Return the objects of a list and where they stand, by their ids. The first of `keys` must be there."""
    found: dict[Id, tuple[dict[str, Any], str]] = {}
    for place, one in enumerate(rows, start=1):
        where = f"{path}, {what} {place}"
        if not isinstance(one, dict) or not {"id", keys[0]} <= set(one):
            raise UserError(f"{where}: expected an object with id and {keys[0]}, got {repr(one)[:_SHOWN]}.")
        key = _id(one["id"], "id", where)
        if key in found and [one.get(name) for name in keys] != [found[key][0].get(name) for name in keys]:
            raise UserError(f"{where}: the id {key!r} is that of another {what} already.")
        found.setdefault(key, (one, where))
    return found


def _ids(one: object, where: str) -> tuple[Id, Id]:
    """Return the ids of an annotation's image and category."""
    if not isinstance(one, dict) or not {"image_id", "category_id", "bbox"} <= set(one):
        raise UserError(f"{where}: expected {_PARTS['annotations']}, got {repr(one)[:_SHOWN]}.")
    return _id(one["image_id"], "image_id", where), _id(one["category_id"], "category_id", where)


def _check_known(what: str, key: Id, known: Mapping[Id, object], where: str) -> None:
    if key in known:
        return
    other = str(key) if isinstance(key, int) else int(key) if key.isascii() and key.isdecimal() else None
    if other is not None and other in known:
        raise UserError(f"{where}: there is no {what} with id {key!r}, but {other!r}: a number and a text are two ids.")
    shown = f"; there are {', '.join(map(str, list(known.values())[:20]))}" if what == "category" else ""
    raise UserError(f"{where}: there is no {what} with id {key!r}{shown}.")


def _id(given: object, name: str, where: str) -> Id:
    if isinstance(given, float) and given.is_integer() and abs(given) < _MOST_EXACT:
        return int(given)
    if isinstance(given, bool) or not isinstance(given, int | str) or (isinstance(given, str) and len(given) > 200):
        raise UserError(f"{where}: {name} must be a whole number or a short text, but is {repr(given)[:_SHOWN]}.")
    return given


def _is_crowd(one: Mapping[str, Any], where: str) -> bool:
    given = one.get("iscrowd")
    found = float(given) if isinstance(given, bool) else number(0 if given is None else given, most=1)
    if found not in (0, 1):
        raise UserError(f"{where}: iscrowd must be 0 or 1, but is {repr(given)[:_SHOWN]}.")
    return bool(found)


def _size(one: Mapping[str, Any], where: str) -> tuple[int, int] | None:
    """Width and height, if both are there."""
    given = one.get("width"), one.get("height")
    if given == (None, None):
        return None
    width, height = (number(side, most=_MOST_SIDE) or 0 for side in given)
    if width < 1 or height < 1 or width % 1 or height % 1:
        shown = " x ".join(repr(side)[:_SHOWN] for side in given)
        raise UserError(f"{where}: width and height must be whole numbers above 0, but are {shown}.")
    return int(width), int(height)
