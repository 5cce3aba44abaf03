"""Data sets of images or point clouds with labeled boxes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.bad_rows import BadRows
from regard.data.tables import as_number, as_text
from regard.data.text.labels import Labels, normalize_label
from regard.errors import UserError

ItemT = TypeVar("ItemT")
MIN_SIDE = 1e-3
"""Side of the smallest box, in pixels or meters; in single precision, the area of a smaller box
cannot be distinguished from 0."""


@dataclass(frozen=True)
class Annotated:
    """File name of an image or a point cloud, with its boxes and their labels."""

    file: str
    boxes: NDArray[np.float64]
    """Images: (boxes, 4), x, y, width, height in pixels; clouds: (boxes, 6), center, size in m."""
    labels: tuple[str, ...]
    where: str
    """Location of the annotation (file and line), for messages."""
    areas: tuple[float, ...] = ()
    """Area of each object as COCO states it, such as that of its mask; empty: that of its box."""
    crowds: tuple[tuple[str, list[float]], ...] = ()
    """Label and box of regions of groups of objects (COCO): they are not learned, and detections in
    them are not evaluated."""


@dataclass(frozen=True)
class AnnotatedDataset(Generic[ItemT]):
    """Images or point clouds with labeled boxes, read from files or synthetic."""

    items: tuple[Annotated, ...]
    load: Callable[[int], ItemT]
    """Function that returns the image, or the thinned points (points, 3 + features), of item i."""
    origin: str
    notices: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    @property
    def labels(self) -> Labels:
        return Labels(tuple(sorted({label for item in self.items for label in item.labels})))

    def take(self, index: Sequence[int]) -> "AnnotatedDataset[ItemT]":
        items = tuple(self.items[i] for i in index)
        return replace(self, items=items, load=lambda i: self.load(index[i]))

    def class_indices(self, labels: Labels, noun: str) -> list[NDArray[np.int64]]:
        """Return the indices of the labels of each item. Raises UserError for an unknown label."""
        rows, nouns = [], ("label", noun.removesuffix("s"))
        for item in self.items:
            try:
                row = [labels.index(label, nouns) for label in item.labels]
            except UserError as error:
                raise UserError(f"{item.where}: {error}") from None
            rows.append(np.array(row, np.int64))
        return rows


def read_annotated(
    path: Path,
    by_file: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]],
    load: Callable[[str], ItemT],
    parse: Callable[[Mapping[str, Any], ItemT], Sequence[float]],
    *,
    sides: int,
    bad_rows: BadRows,
) -> tuple[list[Annotated], list[ItemT]]:
    """Return the files of a table with their boxes, and what `load` returned for each.

    by_file: location and cells of the rows of each file (`read_rows_of_files`); a row of JSONL may
             have a list of boxes, and one without cells has none.
    parse:   returns the numbers of a box.
    sides:   how many they are.
    """
    items: list[Annotated] = []
    loaded: list[ItemT] = []
    for file, rows in by_file.items():
        first, count = rows[0][0], len(loaded)
        with bad_rows.catch(first):
            loaded.append(load(file))
        if len(loaded) == count:
            continue
        boxes, labels, areas, crowds = [], [], [], []
        for where, row in rows:
            found = row.get("boxes", [row] if row else [])
            if not isinstance(found, list) or not all(isinstance(box, dict) for box in found):
                bad_rows.add(f"{where}: boxes must be a list of objects, got {found!r:.100}")
                continue
            for box in found:
                with bad_rows.catch(where):
                    label = as_text(box.get("label", box.get("class"))).strip()
                    if not label:
                        raise UserError("expected a label, got none")
                    numbers, label = [*parse(box, loaded[-1])], normalize_label(label)
                    if box.get("iscrowd"):
                        crowds.append((label, numbers))
                        continue
                    areas.append(as_number(box.get("area", math.prod(numbers[sides // 2 :]))))
                    boxes.append(numbers)
                    labels.append(label)
        array = np.array(boxes, np.float64).reshape(-1, sides)
        items.append(Annotated(file, array, tuple(labels), first, tuple(areas), tuple(crowds)))
    if not items:
        raise UserError(f"{path}: names no usable file. {bad_rows.describe()}".strip())
    return items, loaded
