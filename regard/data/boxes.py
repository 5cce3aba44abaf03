"""Images with boxes: COCO's JSON, CSV or JSONL, and the images in a folder or a tar; or shapes drawn on the fly.

Boxes are x, y, width, height in pixels from the top left corner of the image, upright as its EXIF orientation says.
Where a file gives the image's size, that tells whether its boxes are from before the rotation; then they are rotated,
too. Where the size does not tell (none is given, or it is the same before and after), boxes are those of the upright
image, as annotation tools, OpenCV and detectron2 have it, and a notice says so.

What cannot be learned from is named before training: boxes without area or outside their image, images that are missing
or cannot be read, unknown categories. Boxes that reach over the edge are cut at it.

Source: T.-Y. Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014 (the format).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from regard.data.boxed import Boxed, LeftOut, boxed, four, label_of, name_of
from regard.data.coco import read_coco
from regard.data.image_files import ImageFiles, UprightImage
from regard.data.lines import read_lines
from regard.data.sets_config import BoxesConfig
from regard.data.spellings import Spellings
from regard.data.tables import read_table
from regard.errors import UserError
from regard.files import decode_json
from regard.packed import plain_name

_LEAST_SIDE = 1e-3
"""Pixels: less has no area that single precision could tell from none."""
_COLUMNS = ("file", "x", "y", "width", "height", "label")
_NUMBERS = _COLUMNS[1:5]
_ROTATED = "with boxes from before the rotation, as their sizes say: the boxes were rotated, too"
_ASSUMED = "and sizes do not tell whether the boxes are from before: they are taken to be in the rotated images"


@dataclass(frozen=True)
class Annotated:
    """Images with boxes, from one file or made up."""

    items: tuple[Boxed, ...]
    draw: Callable[[int], Image.Image]
    """The image of item i."""
    origin: str
    skipped: tuple[str, ...] = ()
    """What was left out because the user asked for that, and why."""
    notices: tuple[str, ...] = ()
    """What was assumed about the boxes, a line each."""

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
    left_out = LeftOut(config.on_bad)
    spellings = Spellings()
    found = [
        replace(item, labels=tuple(spellings[label] for label in item.labels))
        for item in readers[suffix](path, left_out)
    ]
    spellings.warn_merged(str(path))
    sources = [ImageFiles.of(Path(images))] if images is not None else _beside(path)
    checked: list[tuple[Boxed, ImageFiles]] = []
    notes: dict[str, list[str]] = {}
    for item in found:
        opened = _opened(item, sources, left_out)
        if opened is not None:
            upright, source, size, note = opened
            checked.append((_inside(upright, size, left_out), source))
            if note and len(item.boxes):
                notes.setdefault(note, []).append(item.file[:200])
    if not checked:
        reason = f" that can be used; first: {left_out.reasons[0]}" if left_out.reasons else "."
        raise UserError(f"{path}: there is no image in it{reason}")
    items = tuple(item for item, _ in checked)
    return Annotated(
        items,
        lambda i: checked[i][1].open(items[i].file, items[i].where).image,
        str(path),
        tuple(left_out.reasons),
        tuple(
            f"{path}: {len(of):,} images have an EXIF orientation, {note}; first: {of[0]}."
            for note, of in notes.items()
        ),
    )


def _beside(path: Path) -> list[ImageFiles]:
    """Where the images of a file of boxes are if nobody says: one folder or tar, then the file's own folder."""
    stem = path.name.split(".")[0]
    last = stem.rsplit("_", 1)[-1]
    names = (last, f"{last}.tar", stem, f"{stem}.tar", "images", "images.tar")
    there = [path.parent / name for name in names if (path.parent / name).exists() and path.parent / name != path]
    return [ImageFiles.of(one) for one in (*there[:1], path.parent)]


def _opened(
    item: Boxed, sources: Sequence[ImageFiles], left_out: LeftOut
) -> tuple[Boxed, ImageFiles, tuple[int, int], str] | None:
    """Return the item with boxes of the upright image, where that is, its size, and a remark; None if left out."""
    with left_out.checking():
        source = next((one for one in sources if one.has(item.file)), sources[0])
        if source is sources[0] and len(sources) > 1 and not source.has(item.file):
            paths = " or ".join(str(one.path) for one in sources)
            raise UserError(f"{item.where}: there is no image {item.file[:200]} inside {paths}.")
        found = source.open(item.file, item.where)
        upright, stored = found.image.size, found.stored_size
        if item.size not in (None, upright, stored):
            said = " x ".join(map(str, item.size or ()))
            real = found.describe_size()
            raise UserError(f"{item.where}: says that {item.file[:200]} has {said} pixels, but the file has {real}.")
        if item.size is None or upright == stored:
            return item, source, upright, "" if found.orientation == 1 else _ASSUMED
        if item.size == upright:
            return item, source, upright, ""
        return replace(item, boxes=rotate_boxes(item.boxes, found)), source, upright, _ROTATED
    return None


def rotate_boxes(boxes: NDArray[np.float64], found: UprightImage) -> NDArray[np.float64]:
    """Return the boxes (boxes, 4) of an image as it is stored, as those of the upright image.

        x, y, width, height -> y, x, height, width, mirrored in x for orientations 6 and 7, in y for 7 and 8

    found: the image, whose orientation is one that exchanges width and height (5 to 8).
    """
    turned = boxes[:, [1, 0, 3, 2]].copy()
    if found.orientation in (6, 7):
        turned[:, 0] = found.image.width - turned[:, 0] - turned[:, 2]
    if found.orientation in (7, 8):
        turned[:, 1] = found.image.height - turned[:, 1] - turned[:, 3]
    return turned


def _inside(item: Boxed, size: tuple[int, int], left_out: LeftOut) -> Boxed:
    """Return the item with its boxes cut at the edges of an image of this size; bad ones are left out."""
    keep, labels = [], []
    width, height = size
    for (x, y, w, h), label in zip(item.boxes.tolist(), item.labels, strict=True):
        left, top, right, bottom = max(x, 0.0), max(y, 0.0), min(x + w, float(width)), min(y + h, float(height))
        shown = f"{item.where}: box [{x:g}, {y:g}, {w:g}, {h:g}] ({label[:60]}) of {item.file[:200]}"
        with left_out.checking():
            if w < _LEAST_SIDE or h < _LEAST_SIDE:
                raise UserError(f"{shown} has no area: width and height must be above 0 (at least {_LEAST_SIDE:g}).")
            if right - left < _LEAST_SIDE or bottom - top < _LEAST_SIDE:
                raise UserError(f"{shown} lies outside the image of {width} x {height} pixels.")
            keep.append((left, top, right - left, bottom - top))
            labels.append(label)
    return replace(item, boxes=np.array(keep, np.float64).reshape(-1, 4), labels=tuple(labels))


def _csv(path: Path, left_out: LeftOut) -> list[Boxed]:
    found: dict[str, list[tuple[list[float], str]]] = {}
    places: dict[str, str] = {}
    for where, cells in read_table(path, _COLUMNS, numeric=_NUMBERS):
        with left_out.checking():
            if not cells["file"]:
                raise UserError(f"{where}: expected the name of an image file, got none.")
            boxes = found.setdefault(cells["file"], [])
            places.setdefault(cells["file"], where)
            if any(cells[name] for name in _COLUMNS[1:]):
                boxes.append((four([cells[name] for name in _NUMBERS], where), label_of(cells["label"], where)))
    return [boxed(file, boxes, places[file]) for file, boxes in found.items()]


def _jsonl(path: Path, left_out: LeftOut) -> list[Boxed]:
    found: dict[str, Boxed] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        with left_out.checking():
            try:
                content = decode_json(line.decode("utf-8"))
                file = content["file"]
                rows = [([one[name] for name in _NUMBERS], one["label"]) for one in content["boxes"]]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                wanted = '{"file":, "boxes": [{x, y, width, height, label}]}'
                problem = f"{type(error).__name__}: {str(error)[:100]}"
                raise UserError(f"{where}: expected {wanted} ({problem}).") from error
            name_of(file, where)
            if file in found:
                earlier = found[file].where.rsplit(" ", 1)[-1]
                raise UserError(f"{where}: the image {file[:200]!r} stands in line {earlier} already.")
            found[file] = boxed(file, [(four(box, where), label_of(label, where)) for box, label in rows], where)
    return list(found.values())
