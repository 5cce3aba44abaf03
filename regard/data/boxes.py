"""Images with boxes: COCO's JSON, CSV or JSONL, and the images in a folder or a tar; or shapes drawn on the fly.

Boxes are x, y, width, height in pixels of the image as it is, from its top left corner. What cannot be learned from is
named before training: boxes without area or outside their image, images that are missing or cannot be read, unknown
categories. Boxes that reach over the edge are cut at it.

Source: T.-Y. Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014 (the format).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from regard.data.boxed import Boxed, boxed, four, label_of, name_of
from regard.data.coco import read_coco
from regard.data.image_files import ImageFiles
from regard.data.lines import read_lines
from regard.data.sets_config import BoxesConfig
from regard.data.tables import read_table
from regard.errors import UserError
from regard.files import decode_json
from regard.packed import plain_name

__all__ = ["Annotated", "read_boxes"]

_LEAST_SIDE = 1e-3
"""Pixels: less has no area that single precision could tell from none."""
_COLUMNS = ("file", "x", "y", "width", "height", "label")
_NUMBERS = _COLUMNS[1:5]


@dataclass(frozen=True)
class Annotated:
    """Images with boxes, from one file or made up."""

    items: tuple[Boxed, ...]
    draw: Callable[[int], Image.Image]
    """The image of item i."""
    origin: str
    skipped: tuple[str, ...] = ()
    """What was left out because the user asked for that, and why."""

    def __len__(self) -> int:
        return len(self.items)

    def take(self, first: int, last: int, origin: str) -> "Annotated":
        """Items first to last."""
        return Annotated(self.items[first:last], lambda i: self.draw(first + i), origin)

    def labels(self) -> tuple[str, ...]:
        """All labels that occur, in their order."""
        return tuple(sorted({label for item in self.items for label in item.labels}))


def read_boxes(path: str | Path, images: str | Path | None, config: BoxesConfig) -> Annotated:
    """All images of a file of boxes. Every image is opened, so that none fails later.

    Raises: UserError naming the file, the line or the annotation, what was expected and what was got.
    """
    path = Path(path)
    suffix = plain_name(path).rsplit(".", 1)[-1]
    readers = {"json": read_coco, "csv": _csv, "jsonl": _jsonl}
    if suffix not in readers:
        raise UserError(f"{path}: expected boxes in a file of .json (COCO), .csv or .jsonl, got .{suffix}.")
    found = list(readers[suffix](path))
    if not found:
        raise UserError(f"{path}: there is no image in it.")
    source = ImageFiles.of(Path(images) if images is not None else _beside(path))
    checked, skipped = [], []
    for item in found:
        image = source.open(item.file, item.where)
        if item.size is not None and item.size != image.size:
            said, real = (" x ".join(map(str, size)) for size in (item.size, image.size))
            raise UserError(f"{item.where}: says that {item.file[:200]} has {said} pixels, but the file has {real}.")
        skipped += item.left_out
        good, bad = _inside(item, image.width, image.height)
        if bad and config.on_bad == "error":
            raise UserError(f"{bad[0]} With `on_bad` = skip, such boxes are left out and counted.")
        skipped += bad
        checked.append(good)
    names = [item.file for item in checked]
    return Annotated(tuple(checked), lambda i: source.open(names[i], checked[i].where), str(path), tuple(skipped))


def _beside(path: Path) -> Path:
    """Where the images of a file of boxes are if nobody says."""
    stem = path.name.split(".")[0]
    last = stem.rsplit("_", 1)[-1]
    for name in (last, f"{last}.tar", stem, f"{stem}.tar", "images", "images.tar"):
        if (path.parent / name).exists() and path.parent / name != path:
            return path.parent / name
    return path.parent


def _inside(item: Boxed, width: int, height: int) -> tuple[Boxed, list[str]]:
    """The item with its boxes cut at the image's edges, and what is wrong with those that are not kept."""
    keep, labels, bad = [], [], []
    for (x, y, w, h), label in zip(item.boxes.tolist(), item.labels, strict=True):
        left, top, right, bottom = max(x, 0.0), max(y, 0.0), min(x + w, float(width)), min(y + h, float(height))
        shown = f"{item.where}: box [{x:g}, {y:g}, {w:g}, {h:g}] ({label[:60]}) of {item.file[:200]}"
        if w < _LEAST_SIDE or h < _LEAST_SIDE:
            bad.append(f"{shown} has no area: width and height must be above 0 (at least {_LEAST_SIDE:g}).")
        elif right - left < _LEAST_SIDE or bottom - top < _LEAST_SIDE:
            bad.append(f"{shown} lies outside the image of {width} x {height} pixels.")
        else:
            keep.append((left, top, right - left, bottom - top))
            labels.append(label)
    return replace(item, boxes=np.array(keep, np.float64).reshape(-1, 4), labels=tuple(labels)), bad


def _csv(path: Path) -> Iterator[Boxed]:
    found: dict[str, list[tuple[list[float], str]]] = {}
    places: dict[str, str] = {}
    for where, cells in read_table(path, _COLUMNS, numeric=_NUMBERS):
        if not cells["file"]:
            raise UserError(f"{where}: expected the name of an image file, got none.")
        boxes = found.setdefault(cells["file"], [])
        places.setdefault(cells["file"], where)
        if any(cells[name] for name in _COLUMNS[1:]):
            boxes.append((four([cells[name] for name in _NUMBERS], where), label_of(cells["label"], where)))
    for file, boxes in found.items():
        yield boxed(file, boxes, places[file])


def _jsonl(path: Path) -> Iterator[Boxed]:
    seen: dict[str, int] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            content = decode_json(line.decode("utf-8"))
            file = content["file"]
            rows = [([one[name] for name in _NUMBERS], one["label"]) for one in content["boxes"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            wanted = '{"file":, "boxes": [{x, y, width, height, label}]}'
            raise UserError(f"{where}: expected {wanted} ({type(error).__name__}: {str(error)[:100]}).") from error
        name_of(file, where)
        if file in seen:
            raise UserError(f"{where}: the image {file[:200]!r} stands in line {seen[file]} already.")
        seen[file] = number
        yield boxed(file, [(four(box, where), label_of(label, where)) for box, label in rows], where)
