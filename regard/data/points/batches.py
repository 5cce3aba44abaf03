"""Batches of point clouds with boxes: padded, and augmented in training.

Augmentation turns a cloud by a multiple of 90 degrees about z, mirrors it, scales it and leaves out
some of its points, differently in each epoch. Boxes stay parallel to the axes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from regard.attention.masks import Padded
from regard.data.annotated import AnnotatedDataset
from regard.data.batches import Batch, BatchesByCount, generator, pad_arrays
from regard.data.elements import LabeledRegions
from regard.data.points.clouds import CloudScale, middle_of
from regard.data.text.labels import Labels

_SCALE = 0.1
_MOST_LEFT_OUT = 0.3
_LEAST_POINTS = 16


@dataclass(eq=False)
class CloudBatches(BatchesByCount):
    """Batches of clouds."""

    data: AnnotatedDataset[NDArray[np.float64]]
    labels: Labels
    scale: CloudScale
    augment: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self.classes = self.data.class_indices(self.labels, "clouds")

    def frame(self, i: int) -> NDArray[np.float64]:
        return middle_of(self.data.load(i))

    def collate(self, epoch: int, indices: Sequence[int]) -> Batch[Padded, LabeledRegions]:
        """Return points (rows, points, 3 + features), in meters from the middle of the cloud, and
        boxes: center and size relative to the extent of the run."""
        clouds, regions = [], []
        for i in indices:
            cloud = self.data.load(i)
            points, boxes = self.scale.normalize(cloud), self.data.items[i].boxes.copy()
            boxes[:, :3] -= middle_of(cloud)
            if self.augment:
                points, boxes = _augment(points, boxes, generator(self.seed, epoch, i))
            clouds.append(points)
            regions.append(to_regions(boxes, self.scale))
        target = LabeledRegions.from_rows([self.classes[i] for i in indices], regions, 3)
        return Batch(pad_arrays(clouds), target, tuple(indices))


def to_regions(boxes: NDArray[np.float64], scale: CloudScale) -> NDArray[np.float64]:
    """Return center and size, relative to the extent, of each box's part (boxes, 6) inside it."""
    extent = np.array(scale.extent)
    first = ((boxes[:, :3] - boxes[:, 3:] / 2) / extent + 0.5).clip(0, 1)
    last = ((boxes[:, :3] + boxes[:, 3:] / 2) / extent + 0.5).clip(0, 1)
    return np.concatenate(((first + last) / 2, last - first), -1)


def to_boxes(regions: NDArray[np.float64], scale: CloudScale) -> NDArray[np.float64]:
    """Return center and size in meters of regions (..., 6)."""
    extent = np.array(scale.extent)
    return np.concatenate(((regions[..., :3] - 0.5) * extent, regions[..., 3:] * extent), -1)


def _augment(
    points: NDArray[np.float32], boxes: NDArray[np.float64], draw: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    signs, quarter = draw.choice([-1.0, 1.0], 2), int(draw.integers(2))
    factor = draw.uniform(1 - _SCALE, 1 + _SCALE)
    share = draw.uniform(1 - _MOST_LEFT_OUT, 1)
    count = max(min(len(points), _LEAST_POINTS), round(share * len(points)))
    points = points[np.sort(draw.choice(len(points), count, replace=False))]
    boxes = boxes.copy()
    if quarter:  # exchanging x and y is a turn and a mirroring
        points[:, [0, 1]] = points[:, [1, 0]]
        boxes[:, [0, 1, 3, 4]] = boxes[:, [1, 0, 4, 3]]
    points[:, :2] *= signs
    boxes[:, :2] *= signs
    points[:, :3] *= factor
    return points, boxes * factor
