"""Data sets of point clouds with boxes in 3-D; docs/recipes/points.md describes the files.

The origin of a cloud for the model is the middle of its points, so that their position in the world
has no effect. Points are put in order of their coordinates, so that the order in a file has no
effect on any bit.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from regard.data.annotated import MIN_SIDE, AnnotatedDataset, read_annotated
from regard.data.artifact import Artifact
from regard.data.bad_rows import BadRows
from regard.data.config import PointsConfig
from regard.data.points.files import parse_cloud
from regard.data.tables import as_number, read_rows_of_files
from regard.errors import UserError
from regard.system.files import one_path, read_bytes

_NUMBERS = ("x", "y", "z", "dx", "dy", "dz")
_MARGIN = 1.1
"""Factor of the largest training extent, for other clouds and scaled ones in training."""


class CloudScale(Artifact):
    """Extent of the clouds of a run, and scales of their features, from the training data."""

    extent: tuple[float, ...]
    """Sides in meters of the space around the middle of a cloud in which boxes are found."""
    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()

    @classmethod
    def measure(cls, data: AnnotatedDataset[NDArray[np.float64]]) -> Self:
        """Return the extent of all training points and boxes, and the scales of the features."""
        reach, count = np.zeros(3), 0
        total = squares = np.zeros(0)
        for i, item in enumerate(data.items):
            points = data.load(i)
            middle, features = middle_of(points), points[:, 3:]
            ends = np.abs(item.boxes[:, :3] - middle) + item.boxes[:, 3:] / 2
            reach = np.maximum(reach, np.abs(points[:, :3] - middle).max(0))
            reach = np.maximum(reach, ends.max(0, initial=0.0))
            total = total + features.sum(0) if count else features.sum(0)
            squares = squares + (features**2).sum(0) if count else (features**2).sum(0)
            count += len(points)
        reach[:2] = reach[:2].max()  # clouds are turned about z in training
        extent = np.maximum(2 * _MARGIN * reach, 2 * MIN_SIDE)
        means = total / max(1, count)
        deviations = np.sqrt(np.maximum(squares / max(1, count) - means**2, 0))
        deviations = np.where(deviations > 1e-6 * (1 + np.abs(means)), deviations, 1.0)
        return cls(tuple(extent.tolist()), tuple(means.tolist()), tuple(deviations.tolist()))

    def normalize(self, points: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return points in meters from their middle, and features of mean 0 and deviation 1."""
        features = (points[:, 3:] - np.array(self.means)) / np.array(self.deviations)
        return np.column_stack((points[:, :3] - middle_of(points), features)).astype(np.float32)


def middle_of(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the middle (3) of the range of coordinates of points (points, 3 + features)."""
    return (points[:, :3].min(0) + points[:, :3].max(0)) / 2


def thin_cloud(points: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Return at most `most` points (points, 3 + features), in order of their coordinates. More are
    replaced by the means in the cells of a grid, whose side is the smallest found by bisection."""
    points = points[np.lexsort(points.T[::-1])]
    if len(points) <= most:
        return points
    origin = points[:, :3].min(0)
    span = float((points[:, :3].max(0) - origin).max())
    low, high = 0.0, max(span, np.finfo(np.float64).tiny) * 2  # one cell holds all points
    cells = _cells(points, origin, high)
    for _ in range(24):
        side = (low + high) / 2
        finer = _cells(points, origin, side)
        if finer.max() < most:
            cells, high = finer, side
        else:
            low = side
        if high - low < 0.01 * high:
            break
    counts = np.bincount(cells)
    means = np.column_stack([np.bincount(cells, column) / counts for column in points.T])
    return means[np.lexsort(means.T[::-1])]


def read_clouds(
    path: str | Path | Sequence[str], config: PointsConfig
) -> AnnotatedDataset[NDArray[np.float64]]:
    """Read a table of boxes and all of its clouds, so that none fails later."""
    path, bad_rows = one_path(path), BadRows(config.on_bad, "clouds and boxes")
    by_file = read_rows_of_files(path, (*_NUMBERS, "label"), config, bad_rows)

    def load(file: str) -> NDArray[np.float64]:
        content = read_bytes(path.parent / file)
        name = str(path.parent / file)
        return thin_cloud(parse_cloud(content, name, config.features), config.points)

    items, clouds = read_annotated(path, by_file, load, _parse, sides=6, bad_rows=bad_rows)
    notices = bad_rows.notices(path)
    return AnnotatedDataset(tuple(items), clouds.__getitem__, str(path), notices)


def _parse(row: Mapping[str, Any], _points: object) -> list[float]:
    """Return center and sizes of a box."""
    box = [as_number(row.get(name)) for name in _NUMBERS]
    if min(box[3:]) < MIN_SIDE:
        got = ", ".join(map(str, row.values()))
        raise UserError(f"expected sizes of at least {MIN_SIDE:g} m, got {got}")
    return box


def _cells(
    points: NDArray[np.float64], origin: NDArray[np.float64], side: float
) -> NDArray[np.int64]:
    """Return the number of the occupied cell of each point."""
    numbers = np.zeros(len(points), np.int64)
    for axis in range(3):  # one by one, for a third of the memory
        places = np.floor((points[:, axis] - origin[axis]) / side).clip(max=2.0**20)
        numbers = (numbers << 21) + places.astype(np.int64)
    return np.unique(numbers, return_inverse=True)[1].reshape(-1)
