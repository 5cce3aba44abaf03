"""Data sets of images or point clouds with labeled boxes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.text.labels import Labels
from regard.errors import UserError

ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class Annotated:
    """File name of an image or a point cloud, with its boxes and their labels."""

    file: str
    boxes: NDArray[np.float64]
    """Images: (boxes, 4), x, y, width, height in pixels; clouds: (boxes, 6), center, size in m."""
    labels: tuple[str, ...]
    where: str
    """Location of the annotation (file and line), for messages."""


@dataclass(frozen=True)
class AnnotatedDataset(Generic[ItemT]):
    """Images or point clouds with labeled boxes, read from files or synthetic."""

    items: tuple[Annotated, ...]
    load: Callable[[int], ItemT]
    """Function that returns the image, or the thinned points (points, 3 + features), of item i."""
    origin: str
    skipped: Sequence[str] = ()
    """Reason for each item or box that was skipped (on_bad = skip)."""
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
        known = {name: number for number, name in enumerate(labels.names)}
        for item in self.items:
            for label in item.labels:
                if label not in known:
                    problem = labels.describe_unknown(label, ("label", noun.removesuffix("s")))
                    raise UserError(f"{item.where}: {problem}")
        return [np.array([known[label] for label in item.labels], np.int64) for item in self.items]
