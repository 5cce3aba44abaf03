"""Synthetic circles, squares and triangles on a noisy background, for the recipe `boxes`."""

import numpy as np
from PIL import Image, ImageDraw

from regard.data.annotated import Annotated, AnnotatedDataset
from regard.data.batches import generator
from regard.data.config import BoxesConfig

_COUNT = {"train": 600, "val": 60, "test": 120}
_SHAPES = ("circle", "square", "triangle")
_MOST = 6


def make_shapes(split: str, seed: int, config: BoxesConfig) -> AnnotatedDataset[Image.Image]:
    """Generate a split's images, of up to six shapes: a pure function of (split, seed, number)."""
    items = []
    for i in range(_COUNT[split]):
        shapes = _shapes(split, seed, i, config)
        boxes = np.array([box for box, _, _ in shapes], np.float64).reshape(-1, 4)
        names = tuple(name for _, name, _ in shapes)
        items.append(Annotated(f"{split}-{i}", boxes, names, f"shape image {split}-{i}"))
    return AnnotatedDataset(
        tuple(items), lambda i: _draw_image(split, seed, i, config), f"drawn shapes, {split}"
    )


def _shapes(
    split: str, seed: int, number: int, config: BoxesConfig
) -> list[tuple[tuple[int, int, int, int], str, tuple[int, ...]]]:
    """Return box, name and color of each shape, from back to front."""
    draw = generator(seed, sum(map(ord, split)), number)
    side = min(config.width, config.height)
    shapes = []
    for _ in range(int(draw.integers(0, _MOST + 1))):
        size = int(draw.integers(max(4, side // 10), max(6, side // 3)))
        x = int(draw.integers(0, config.width - size))
        y = int(draw.integers(0, config.height - size))
        color = tuple(int(part) for part in draw.integers(60, 256, 3))
        shapes.append(((x, y, size, size), _SHAPES[int(draw.integers(3))], color))
    return shapes


def _draw_image(split: str, seed: int, number: int, config: BoxesConfig) -> Image.Image:
    noise = generator(seed, 7, sum(map(ord, split)), number)
    background = noise.integers(0, 60, (config.height, config.width, 3)).astype(np.uint8)
    image = Image.fromarray(background)
    pen = ImageDraw.Draw(image)
    for box, name, color in _shapes(split, seed, number, config):
        draw_shape(pen, name, box, color)
    return image


def draw_shape(
    pen: ImageDraw.ImageDraw, name: str, box: tuple[int, int, int, int], color: tuple[int, ...]
) -> None:
    """Draw a circle, a square or a triangle that fills a box (x, y, width, height)."""
    x, y, width, height = box
    # Pillow includes the last point, so a box of this width ends at x + width - 1.
    right, bottom = x + width - 1, y + height - 1
    if name == "circle":
        pen.ellipse((x, y, right, bottom), fill=color)
    elif name == "square":
        pen.rectangle((x, y, right, bottom), fill=color)
    else:
        pen.polygon(((x, bottom), (right, bottom), ((x + right) // 2, y)), fill=color)
