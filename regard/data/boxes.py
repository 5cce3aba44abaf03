"""Images with boxes: COCO's JSON, CSV or JSONL, and the images in a folder or a tar; or shapes drawn on the fly.

Boxes are x, y, width, height in pixels of the image as it is, from its top left corner. What cannot be learned from is
named before training: boxes without area or outside their image, images that are missing or cannot be read, unknown
categories. Boxes that reach over the edge are cut at it.

Source: T.-Y. Lin et al., "Microsoft COCO: Common Objects in Context", ECCV 2014 (the format).
"""

import io
import json
import math
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from regard.data.lines import read_lines
from regard.data.sets_config import BoxesConfig
from regard.data.tables import read_table
from regard.errors import UserError

__all__ = ["Annotated", "Boxed", "ImageFiles", "read_boxes"]

_MOST_PIXELS = 64_000_000
_COLUMNS = ("file", "x", "y", "width", "height", "label")
_NUMBERS = _COLUMNS[1:5]


@dataclass(frozen=True)
class Boxed:
    """An image's name and the boxes in it."""

    file: str
    boxes: NDArray[np.float64]
    """(boxes, 4): x, y, width, height in pixels"""
    labels: tuple[str, ...]
    where: str
    """Where it is described, for messages."""


@dataclass(frozen=True)
class ImageFiles:
    """The image files of a folder or a tar, by name."""

    path: Path
    """The folder or the tar."""
    members: dict[str, tuple[int, int]] | None
    """Of a tar: where the bytes of each file begin, and how many there are."""

    @classmethod
    def of(cls, path: Path) -> "ImageFiles":
        """The images in a folder or a tar. Raises UserError if it is neither."""
        if path.is_dir():
            return cls(path, None)
        try:
            with tarfile.open(path, "r:") as archive:
                found = {one.name: (one.offset_data, one.size) for one in archive if one.isreg()}
        except (OSError, tarfile.TarError) as error:
            raise UserError(f"{path}: expected a folder or an uncompressed tar of images ({error}).") from error
        return cls(path, found | {name.rsplit("/", 1)[-1]: place for name, place in found.items()})

    def open(self, name: str, where: str) -> Image.Image:
        """The image of this name, in colour. Raises UserError naming the file and who asked for it."""
        if self.members is None and (Path(name).is_absolute() or ".." in Path(name).parts):
            raise UserError(f"{where}: the image {name!r} must be a name inside {self.path}.")
        try:
            with Image.open(self._file(name, where)) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise UserError(
                        f"{where}: {name} has {image.width} x {image.height} pixels, above {_MOST_PIXELS:,}."
                    )
                return image.convert("RGB")
        except UserError:
            raise
        except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise UserError(f"{where}: {self.path} / {name}: no image that can be read ({error}).") from error

    def _file(self, name: str, where: str) -> io.BytesIO | Path:
        if self.members is None:
            if not (self.path / name).is_file():
                raise UserError(f"{where}: there is no image {name} in {self.path}.")
            return self.path / name
        if name not in self.members:
            raise UserError(f"{where}: there is no image {name} in {self.path}.")
        start, size = self.members[name]
        with self.path.open("rb") as archive:
            archive.seek(start)
            return io.BytesIO(archive.read(size))


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
    suffix = path.name.removesuffix(".gz").rsplit(".", 1)[-1].lower()
    readers = {"json": _coco, "csv": _csv, "jsonl": _jsonl}
    if suffix not in readers:
        raise UserError(f"{path}: expected boxes in a file of .json (COCO), .csv or .jsonl, got .{suffix}.")
    found = list(readers[suffix](path))
    if not found:
        raise UserError(f"{path}: there is no image in it.")
    source = ImageFiles.of(Path(images) if images is not None else _beside(path))
    checked, skipped = [], []
    for item in found:
        image = source.open(item.file, item.where)
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
        shown = f"{item.where}: box [{x:g}, {y:g}, {w:g}, {h:g}] ({label}) of {item.file}"
        if w <= 0 or h <= 0:
            bad.append(f"{shown} has no area: width and height must be above 0.")
        elif right <= left or bottom <= top:
            bad.append(f"{shown} lies outside the image of {width} x {height} pixels.")
        else:
            keep.append((left, top, right - left, bottom - top))
            labels.append(label)
    return Boxed(item.file, np.array(keep, np.float64).reshape(-1, 4), tuple(labels), item.where), bad


def _coco(path: Path) -> Iterator[Boxed]:
    try:
        content = json.loads(b"\n".join(read_lines(path)))
        images = {one["id"]: str(one["file_name"]) for one in content["images"]}
        names = {one["id"]: str(one["name"]) for one in content["categories"]}
        annotations: list[dict[str, Any]] = list(content["annotations"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path}: expected COCO's images (id, file_name), categories (id, name), annotations ({error!r})."
        ) from error
    found: dict[Any, list[tuple[list[float], str]]] = {key: [] for key in images}
    for place, one in enumerate(annotations, start=1):
        where = f"{path}, annotation {place}"
        try:
            image, category, box = one["image_id"], one["category_id"], _box(one["bbox"], where)
        except (KeyError, TypeError) as error:
            raise UserError(f"{where}: expected image_id, category_id, bbox ({error!r}).") from error
        if image not in images:
            raise UserError(f"{where}: there is no image with id {image!r}.")
        if category not in names:
            raise UserError(
                f"{where}: there is no category with id {category!r}; there are {', '.join(names.values())}."
            )
        found[image].append((box, names[category]))
    for key, boxes in found.items():
        yield _boxed(images[key], boxes, str(path))


def _csv(path: Path) -> Iterator[Boxed]:
    found: dict[str, list[tuple[list[float], str]]] = {}
    for where, cells in read_table(path, _COLUMNS):
        boxes = found.setdefault(cells["file"], [])
        if any(cells[name] for name in _COLUMNS[1:]):
            if not cells["label"]:
                raise UserError(f"{where}: expected a label, got none.")
            boxes.append((_box([cells[name] for name in _NUMBERS], where), cells["label"]))
    for file, boxes in found.items():
        yield _boxed(file, boxes, str(path))


def _jsonl(path: Path) -> Iterator[Boxed]:
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            content = json.loads(line)
            file = str(content["file"])
            boxes = [(_box([one[name] for name in _NUMBERS], where), str(one["label"])) for one in content["boxes"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(
                f'{where}: expected {{"file":, "boxes": [{{x, y, width, height, label}}]}} ({error!r}).'
            ) from error
        yield _boxed(file, boxes, where)


def _box(given: Sequence[Any], where: str) -> list[float]:
    """Four numbers. Raises UserError."""
    try:
        numbers = [float(number) for number in given]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != 4 or not all(map(math.isfinite, numbers)):
        raise UserError(f"{where}: expected x, y, width, height, four numbers, got {given!r}.")
    return numbers


def _boxed(file: str, boxes: Sequence[tuple[list[float], str]], where: str) -> Boxed:
    array = np.array([box for box, _ in boxes], np.float64).reshape(-1, 4)
    return Boxed(file, array, tuple(label for _, label in boxes), where)
