"""Synthetic rooms as point clouds, the default data of the recipe `points`.

A room has a floor, four walls and furniture made of cuboids: tables, chairs, beds, cabinets and
lamps. Points lie on all surfaces, and are seen from two viewpoints: of the points in the same
direction, only the nearest are kept. They have noise of 1 cm; small boxes without a label and stray
points are clutter. A pure function of (seed, split, number).
"""

import numpy as np
from numpy.typing import NDArray

from regard.data.annotated import Annotated, AnnotatedDataset
from regard.data.batches import generator
from regard.data.config import PointsConfig
from regard.data.points.clouds import thin_cloud

_COUNT = {"train": 600, "val": 60, "test": 120}
_RAW, _SEEN = 16_000, 3_000
"""Points on the surfaces of a room, and how many of the visible ones are kept."""
_DENSITY = 3.0
"""Density of points on furniture, relative to that on floor and walls."""
_NOISE, _STRAY = 0.01, 30
_LEAST_SEEN = 20
"""Furniture with fewer visible points is not labeled."""
_VIEWS, _ROWS, _TOLERANCE = 2, 60, 0.2
_GAP = 0.1

Floats = NDArray[np.float64]
Cuboid = tuple[float, float, float, float, float, float]
"""First corner and sizes, as shares of the sides of the furniture."""
_PARTS: dict[str, tuple[Cuboid, ...]] = {
    "bed": ((0, 0, 0, 1, 1, 0.5), (0, 0, 0.5, 0.06, 1, 0.5)),
    "cabinet": ((0, 0, 0, 1, 1, 1),),
    "chair": (
        (0, 0, 0.45, 1, 1, 0.08),
        (0, 0, 0.53, 0.1, 1, 0.47),
        *((x, y, 0.0, 0.1, 0.1, 0.45) for x in (0.0, 0.9) for y in (0.0, 0.9)),
    ),
    "lamp": (
        (0.2, 0.2, 0, 0.6, 0.6, 0.04),
        (0.45, 0.45, 0.04, 0.1, 0.1, 0.76),
        (0, 0, 0.78, 1, 1, 0.22),
    ),
    "table": (
        (0, 0, 0.92, 1, 1, 0.08),
        *((x, y, 0.0, 0.07, 0.07, 0.92) for x in (0.0, 0.93) for y in (0.0, 0.93)),
    ),
}
_SIDES = {
    "bed": ((1.9, 2.1), (0.9, 1.8), (0.8, 1.1)),
    "cabinet": ((0.4, 0.6), (0.6, 1.5), (1.0, 2.0)),
    "chair": ((0.4, 0.5), (0.4, 0.5), (0.8, 1.0)),
    "lamp": ((0.3, 0.5), (0.3, 0.5), (1.3, 1.8)),
    "table": ((0.8, 1.8), (0.7, 1.0), (0.7, 0.8)),
}
"""Ranges of the sides of each kind of furniture, in meters."""
_AT_WALL = ("bed", "cabinet")


def make_rooms(split: str, seed: int, config: PointsConfig) -> AnnotatedDataset[Floats]:
    """Generate the rooms of a split, with three to eight pieces of furniture each."""
    items, clouds = [], []
    for i in range(_COUNT[split]):
        points, boxes, labels = make_room(split, seed, i)
        items.append(Annotated(f"{split}-{i}", boxes, labels, f"synthetic room {split}-{i}"))
        clouds.append(thin_cloud(points, config.points))
    return AnnotatedDataset(tuple(items), clouds.__getitem__, f"synthetic rooms, {split}")


def make_room(split: str, seed: int, number: int) -> tuple[Floats, Floats, tuple[str, ...]]:
    """Return points (points, 3), boxes (boxes, 6: center, size) and labels of a room, in meters."""
    draw = generator(seed, sum(map(ord, split)), number)
    width, depth, height = draw.uniform(3.5, 6), draw.uniform(3.5, 6), draw.uniform(2.4, 2.8)
    pieces = _furnish(draw, width, depth)
    rectangles, owners = _surfaces(draw, pieces, width, depth, height)
    points, owner = _sample(draw, rectangles, owners)
    seen = np.zeros(len(points), bool)
    for _ in range(_VIEWS):
        x, y = draw.uniform(0.1, 0.9) * width, draw.uniform(0.1, 0.9) * depth
        seen |= _visible(points, np.array([x, y, draw.uniform(1.4, 1.9)]))
    visible = draw.permutation(np.flatnonzero(seen))[:_SEEN]
    points, owner = points[visible] + draw.normal(0, _NOISE, (len(visible), 3)), owner[visible]
    labeled = [i for i in range(len(pieces)) if (owner == i).sum() >= _LEAST_SEEN]
    points = points[~np.isin(owner, np.setdiff1d(np.arange(len(pieces)), labeled))]
    stray = draw.uniform(0, 1, (_STRAY, 3)) * (width, depth, height)
    points = draw.permutation(np.concatenate((points, stray)))
    turn = draw.uniform(-50, 50, 3)  # the origin of a scan is anywhere
    boxes = [np.concatenate((first + sides / 2, sides)) for _, first, sides, _ in pieces]
    boxes = np.array(boxes).reshape(-1, 6)
    boxes[:, :3] += turn
    return points + turn, boxes[labeled], tuple(pieces[i][0] for i in labeled)


Piece = tuple[str, Floats, Floats, int]
"""Kind, first corner, sides, and direction in quarter turns."""


def _furnish(draw: np.random.Generator, width: float, depth: float) -> list[Piece]:
    """Return furniture that does not overlap, seen from above."""
    pieces: list[Piece] = []
    room, wanted = np.array([width, depth]), int(draw.integers(3, 9))
    for _ in range(6 * wanted):
        if len(pieces) == wanted:
            break
        kind = str(draw.choice(list(_PARTS)))
        sides = np.array([draw.uniform(*span) for span in _SIDES[kind]])
        direction = int(draw.integers(4))
        if direction % 2:
            sides[[0, 1]] = sides[[1, 0]]
        free = room - sides[:2]
        first = draw.uniform(0, 1, 2) * free
        if kind in _AT_WALL:  # its back, at 0 of the first axis before it is turned
            axis = direction % 2
            first[axis] = 0.0 if direction < 2 else free[axis]
        last = first + sides[:2] + _GAP
        is_free = True
        for _, other, size, _ in pieces:
            is_beside = (first > other[:2] + size[:2] + _GAP) | (last < other[:2])
            is_free = is_free and bool(is_beside.any())
        if is_free:
            pieces.append((kind, np.array([*first, 0.0]), sides, direction))
    return pieces


def _surfaces(
    draw: np.random.Generator, pieces: list[Piece], width: float, depth: float, height: float
) -> tuple[Floats, NDArray[np.int64]]:
    """Return rectangles (rectangles, 3, 3: corner, two sides) and the piece of each; -1: none."""
    x, y, z = np.diag((width, depth, height))
    zero = np.zeros(3)
    rectangles = [(zero, x, y), (zero, x, z), (zero, y, z), (y, x, z), (x, y, z)]
    owners = [-1] * len(rectangles)
    for number, (kind, first, sides, direction) in enumerate(pieces):
        for part in _PARTS[kind]:
            corner, size = np.array(part, np.float64).reshape(2, 3)
            if direction % 2:
                corner, size = corner[[1, 0, 2]], size[[1, 0, 2]]
            if direction >= 2:
                axis = direction % 2
                corner[axis] = 1 - corner[axis] - size[axis]
            faces = _faces(first + corner * sides, size * sides)
            rectangles += faces
            owners += [number] * len(faces)
    for _ in range(int(draw.integers(0, 4))):  # clutter on the floor
        size = draw.uniform(0.1, 0.3, 3)
        place = draw.uniform(0, 1, 2) * ((width, depth) - size[:2])
        faces = _faces(np.array([*place, 0.0]), size)
        rectangles += faces
        owners += [-1] * len(faces)
    return np.array(rectangles), np.array(owners)


def _faces(first: Floats, sides: Floats) -> list[tuple[Floats, ...]]:
    x, y, z = np.diag(sides)
    near = [(first, x, y), (first, x, z), (first, y, z)]
    return [*near, (first + z, x, y), (first + y, x, z), (first + x, y, z)]


def _sample(
    draw: np.random.Generator, rectangles: Floats, owners: NDArray[np.int64]
) -> tuple[Floats, NDArray[np.int64]]:
    """Return points on rectangles by area and density, and the piece of each."""
    area = np.linalg.norm(np.cross(rectangles[:, 1], rectangles[:, 2]), axis=-1)
    area = area * np.where(owners < 0, 1.0, _DENSITY)
    index = draw.choice(len(area), _RAW, p=area / area.sum())
    corner, one, other = rectangles[index].transpose(1, 0, 2)
    u, v = draw.random((2, _RAW, 1))
    return corner + u * one + v * other, owners[index]


def _visible(points: Floats, viewpoint: Floats) -> NDArray[np.bool_]:
    """Return which points are the nearest in their direction, or not much farther."""
    ray = points - viewpoint
    distance = np.linalg.norm(ray, axis=-1)
    azimuth = (np.arctan2(ray[:, 1], ray[:, 0]) / (2 * np.pi) + 0.5) * 2 * _ROWS
    sine = (ray[:, 2] / np.maximum(distance, 1e-9)).clip(-1, 1)
    elevation = (np.arcsin(sine) / np.pi + 0.5) * _ROWS
    cell = azimuth.astype(np.int64) * (_ROWS + 1) + elevation.astype(np.int64)
    nearest = np.full(int(cell.max()) + 1, np.inf)
    np.minimum.at(nearest, cell, distance)
    return distance < nearest[cell] + _TOLERANCE
