"""Scenes of colored shapes with sentences about them, the default data of the recipe `caption`.

    one shape        "a red circle in the top left"               "in the top left is a red circle"
    two shapes       "a red circle left of a blue square"
                     "a blue square right of a red circle"
    three shapes     "a red circle and a blue square and a green triangle from left to right"
                     "a green triangle and a blue square and a red circle from right to left"

Both sentences of a scene are true, so both are references. Shapes do not overlap. The centers of
two differ at least twice as much in one direction as in the other, and those of three differ in x,
so that no sentence is ambiguous.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from regard.data.config import CaptionsConfig, scenes_of_epoch
from regard.data.embedded.sentences import count_phrase, describe_relation
from regard.data.embedded.shapes import draw_shape

_SPLITS = {"train": 0, "val": 1, "test": 2}
_SHAPES = ("circle", "square", "triangle")
_COLORS = {
    "red": (214, 39, 40),
    "green": (44, 150, 44),
    "blue": (40, 90, 200),
    "yellow": (240, 200, 30),
    "purple": (140, 70, 190),
    "white": (245, 245, 245),
}
_ROWS, _COLUMNS = ("top", "", "bottom"), ("left", "", "right")
_MOST = 3

_Shape = tuple[str, tuple[int, int, int]]
"""Color and name in one phrase; left, top and side in pixels."""


class CaptionedShapes:
    """Scenes of one to three shapes: a pure function of (split, seed, index)."""

    notices: tuple[str, ...] = ()

    def __init__(self, split: str, seed: int, config: CaptionsConfig):
        self.split, self.seed, self.config = split, seed, config
        self.origin = f"drawn shapes, {split}"

    def epoch(self, number: int) -> range:
        return scenes_of_epoch(number, self.split, self.config)

    def name(self, index: int) -> str:
        return f"{self.split}-{index}"

    def captions(self, index: int) -> list[str]:
        return describe(self._shapes(index), self.config.width, self.config.height)

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """Draw a scene (height, width, 3), on a dark noisy background."""
        noise = np.random.PCG64(np.random.SeedSequence((self.seed, _SPLITS[self.split], index, 1)))
        size = self.config.height * self.config.width * 3
        background = noise.random_raw(-(-size // 8)).astype("<u8").view(np.uint8)[:size] // 5
        image = Image.fromarray(background.reshape(self.config.height, self.config.width, 3))
        pen = ImageDraw.Draw(image)
        for phrase, (x, y, side) in self._shapes(index):
            color, name = phrase.split()
            draw_shape(pen, name, (x, y, side, side), _COLORS[color])
        return np.asarray(image)

    def _shapes(self, index: int) -> list[_Shape]:
        stream = np.random.PCG64(np.random.SeedSequence((self.seed, _SPLITS[self.split], index)))
        width, height = self.config.width, self.config.height
        smaller = min(width, height)
        count, *draws = (int(number) for number in stream.random_raw(1 + 2 * _MOST))
        count = 1 + count % _MOST
        kinds = []
        for color, shape in zip(draws[:count], draws[_MOST:], strict=False):
            kinds.append(f"{list(_COLORS)[color % len(_COLORS)]} {_SHAPES[shape % len(_SHAPES)]}")
        while True:
            places = []
            for _ in range(count):
                side_draw, x, y = (int(number) for number in stream.random_raw(3))
                side = smaller // 6 + side_draw % (smaller // 4 - smaller // 6 + 1)
                places.append((x % (width - side), y % (height - side), side))
            if _is_clear(places, width, height):
                return list(zip(kinds, places, strict=True))


def describe(shapes: list[_Shape], width: int, height: int) -> list[str]:
    """Return two sentences that describe shapes on a canvas of these sides in pixels."""
    if len(shapes) == 1:
        name = count_phrase(1, shapes[0][0])
        place = _region(_center(shapes[0][1]), width, height)
        return [f"{name} {place}", f"{place} is {name}"]
    if len(shapes) == _MOST:
        by_x = sorted(shapes, key=lambda shape: _center(shape[1])[0])
        ordered = [count_phrase(1, name) for name, _ in by_x]
        names, backward = " and ".join(ordered), " and ".join(reversed(ordered))
        return [f"{names} from left to right", f"{backward} from right to left"]
    (first, place), (second, other) = shapes
    (x, y), (right, below) = _center(place), _center(other)
    if abs(x - right) > abs(y - below):
        relations = ("left of", "right of") if x < right else ("right of", "left of")
    else:
        relations = ("above", "below") if y < below else ("below", "above")
    sentence = describe_relation(first, relations[0], second)
    return [sentence, describe_relation(second, relations[1], first)]


def _center(place: tuple[int, int, int]) -> tuple[float, float]:
    x, y, side = place
    return x + side / 2, y + side / 2


def _region(center: tuple[float, float], width: int, height: int) -> str:
    """Return the ninth of the canvas that a point is in: in the top left, at the top, ..."""
    x, y = center
    row, column = _ROWS[min(2, int(3 * y / height))], _COLUMNS[min(2, int(3 * x / width))]
    if row and column:
        return f"in the {row} {column}"
    return f"at the {row}" if row else f"on the {column}" if column else "in the middle"


def _is_clear(places: list[tuple[int, int, int]], width: int, height: int) -> bool:
    """Return True if no shapes overlap and sentences about their places are not ambiguous."""
    for i, (x, y, side) in enumerate(places):
        for left, top, other in places[:i]:
            is_beside = x > left + other or left > x + side
            if not is_beside and y <= top + other and top <= y + side:
                return False
    centers = [_center(place) for place in places]
    if len(centers) == 1:  # not close to the border of a ninth
        thirds = centers[0][0] / width * 3, centers[0][1] / height * 3
        return all(min(abs(third - 1), abs(third - 2)) > 0.15 for third in thirds)
    if len(centers) == _MOST:
        xs = sorted(x for x, _ in centers)
        return all(second - first > width / 12 for first, second in pairwise(xs))
    dx, dy = (abs(first - second) for first, second in zip(*centers, strict=True))
    return max(dx, dy) >= 2 * min(dx, dy)
