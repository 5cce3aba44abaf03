"""Augmentation of images: maps of the plane, then changes of the colors, for a whole batch.

    old = A new + b    where the image is from -1 to 1 on both axes: the new pixel is the old one
                       there, by bilinear interpolation

The random numbers of an image are a function of (seed, epoch, index), so it is the same image
in any batch, on any number of processes, and in a resumed run. Maps are composed: pixels are
interpolated once, and rounded to whole numbers of 0 to 255 at the end. Boxes move with the inverse
map; a box of which less than a third stays inside the image is dropped. The names are explained in
docs/recipes/images.md.

Source: crop szegedy2015, section 6; randaugment cubuk2020.
"""

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard.data.batches import generator

_MIN_VISIBLE = 1 / 3
"""Smallest part of a box that must stay inside its image."""
_COUNT = 20
"""Random numbers of an image."""
_MIN_AREA, _MAX_DISTORTION = 0.5, 4 / 3
_MAGNITUDE, _PICKED = 0.3, 2
_GEOMETRIC = ("rotate", "shear-x", "shear-y", "translate-x", "translate-y")
OPERATIONS = (
    *_GEOMETRIC,
    *("brightness", "contrast", "saturation", "sharpness", "posterize", "solarize"),
    *("autocontrast", "equalize", "identity"),
)
"""Operations of randaugment."""
Planes = Float[np.ndarray, "rows 3 3"]


def draw_numbers(seed: int, epoch: int, indices: Sequence[int]) -> Float[np.ndarray, "rows count"]:
    """Return the random numbers of images in an epoch, uniform in [0, 1)."""
    return np.stack([generator(seed, epoch, index).random(_COUNT) for index in indices])


def augment_images(
    pixels: UInt8[np.ndarray, "rows channels height width"],
    names: Collection[str],
    numbers: Float[np.ndarray, "rows count"],
    *,
    fill: int = 0,
    magnitude: float = _MAGNITUDE,
) -> tuple[Float[Tensor, "rows channels height width"], Planes]:
    """Return augmented pixels within 0 to 255, and the maps of the plane from new to old places.

    fill: the pixels outside the old image. magnitude: of randaugment, 0 to 1.
    """
    sides, column = np.array([pixels.shape[3], pixels.shape[2]]), iter(numbers.T)
    planes = _draw_planes(names, column, sides)
    slope, offset = _draw_colors(column, pixels.shape[1])
    picked = []
    if "randaugment" in names:
        for _ in range(_PICKED):
            kind = (next(column) * len(OPERATIONS)).astype(int)
            strength = np.where(next(column) < 0.5, -magnitude, magnitude)
            picked.append((kind, strength))
            planes = planes @ _operation_planes(kind, strength, sides[1] / sides[0])
    images = _interpolate(torch.from_numpy(pixels).float(), planes, fill)
    if "color" in names:
        images = images * _to_images(slope) + _to_images(offset)
    for kind, strength in picked:
        for number in np.unique(kind):
            rows = np.flatnonzero(kind == number)
            values = images[rows].clamp(0, 255).round()
            images[rows] = _apply(OPERATIONS[number], values, _to_images(strength[rows, None]))
    return images.clamp_(0, 255).round_(), planes


def move_boxes(
    boxes: Float[np.ndarray, "boxes 4"], plane: Float[np.ndarray, "3 3"], size: Sequence[int]
) -> tuple[Float[np.ndarray, "boxes 4"], NDArray[np.bool_]]:
    """Return the boxes (x, y, width, height) around the moved ones, cut at the image of a size
    (width, height); and which of them are still visible."""
    sides = np.array(size)
    corners = boxes[:, None, :2] + boxes[:, None, 2:] * np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    old = np.concatenate((2 * corners / sides - 1, np.ones((len(boxes), 4, 1))), -1)
    new = (old @ np.linalg.inv(plane).T)[..., :2]
    places = (new + 1) / 2 * sides
    first, last = places.min(1), places.max(1)
    area = (last - first).prod(-1)
    first, last = np.clip(first, 0, sides), np.clip(last, 0, sides)
    is_visible = (last - first).prod(-1) >= np.maximum(_MIN_VISIBLE * area, 1.0)
    return np.concatenate((first, last - first), -1), is_visible


def _draw_planes(
    names: Collection[str], column: Iterator[NDArray[np.float64]], sides: NDArray[np.int64]
) -> Planes:
    """Return the maps of the names, composed: the first one changes the image first."""

    def draw(count: int) -> NDArray[np.float64]:
        """Return the next columns, uniform in [-1, 1)."""
        return 2 * np.stack([next(column) for _ in range(count)], -1) - 1

    shift, zoom, crop, flips = draw(2), draw(3), draw(4), draw(2)
    planes = np.tile(np.eye(3), (len(shift), 1, 1))
    if "shift" in names:
        reach = sides // 8
        pixels = np.floor((shift + 1) / 2 * (2 * reach + 1)) - reach
        planes = planes @ _scale_and_move(np.ones_like(shift), 2 * pixels / sides)
    if "zoom" in names:
        factor = 1.1 + 0.3 * zoom[:, :1]
        # The image is moved by at most its overhang + 5 %.
        moved = zoom[:, 1:] * (np.abs(factor - 1) + 0.1)
        planes = planes @ _scale_and_move(1 / factor.repeat(2, 1), -moved / factor)
    if "crop" in names:
        area = (1 + _MIN_AREA) / 2 + (1 - _MIN_AREA) / 2 * crop[:, 0]
        distortion = np.exp(crop[:, 1] * math.log(_MAX_DISTORTION))
        part = np.sqrt(np.stack((area * distortion, area / distortion), -1)).clip(max=1)
        planes = planes @ _scale_and_move(part, crop[:, 2:] * (1 - part))
    for axis, name in enumerate(("flip", "flip-vertical")):
        if name in names:
            signs = np.ones_like(flips)
            signs[:, axis] = np.where(flips[:, axis] < 0, -1, 1)
            planes = planes @ _scale_and_move(signs, np.zeros_like(flips))
    return planes


def _scale_and_move(scale: NDArray[np.float64], offset: NDArray[np.float64]) -> Planes:
    """Return the maps old = scale new + offset."""
    planes = np.zeros((len(scale), 3, 3))
    planes[:, (0, 1), (0, 1)], planes[:, :2, 2], planes[:, 2, 2] = scale, offset, 1
    return planes


def _operation_planes(
    kind: NDArray[np.int64], strength: NDArray[np.float64], ratio: float
) -> Planes:
    """Return the maps of the geometric operations on images of height / width `ratio`; the identity
    for others."""
    is_kind = kind == np.arange(len(_GEOMETRIC))[:, None]
    rotate, shear_x, shear_y, move_x, move_y = np.where(is_kind, strength, 0.0)
    angle = math.radians(30) * rotate
    planes = np.tile(np.eye(3), (len(kind), 1, 1))
    planes[:, 0, 0] = planes[:, 1, 1] = np.cos(angle)
    planes[:, 0, 1] = (0.3 * shear_x - np.sin(angle)) * ratio
    planes[:, 1, 0] = (0.3 * shear_y + np.sin(angle)) / ratio
    planes[:, :2, 2] = 2 * 150 / 331 * np.stack((move_x, move_y), -1)
    return planes


def _draw_colors(
    column: Iterator[NDArray[np.float64]], channels: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the factor and the offset of each channel (rows, channels)."""
    contrast, brightness = 0.75 + 0.5 * next(column), 40 * next(column) - 20
    tint = np.stack([0.9 + 0.2 * next(column) for _ in range(3)], -1)[:, :channels]
    slope = contrast[:, None] * tint
    return slope, 128 * (1 - slope) + brightness[:, None]


def _to_images(values: NDArray[np.float64]) -> Float[Tensor, "rows channels 1 1"]:
    return torch.from_numpy(values).float()[..., None, None]


def _interpolate(images: Tensor, planes: Planes, fill: int) -> Tensor:
    """Return the images whose pixels are those at the places that `planes` maps theirs to."""
    height, width = images.shape[2:]
    first, second = torch.from_numpy(planes[:, :2]).float().permute(1, 2, 0)[..., None, None]
    across = (2 * torch.arange(width) + 1) / width - 1
    down = ((2 * torch.arange(height) + 1) / height - 1)[:, None]
    grid = images.new_empty(len(images), height, width, 2)
    for axis, (of_x, of_y, offset) in enumerate((first, second)):
        grid[..., axis] = of_x * across + (of_y * down + offset)
    return functional.grid_sample(images - fill, grid, align_corners=False) + fill


def _apply(name: str, images: Tensor, strength: Float[Tensor, "rows 1 1 1"]) -> Tensor:
    """Return images of whole numbers of 0 to 255, changed by an operation on colors."""
    if name == "posterize":
        step = 2 ** (4 * strength.abs()).round()
        return torch.floor(images / step) * step
    if name == "solarize":
        return torch.where(images < 256 * (1 - strength.abs()), images, 255 - images)
    if name == "autocontrast":
        low, high = images.amin((2, 3), True), images.amax((2, 3), True)
        return torch.where(high > low, (images - low) * (255 / (high - low)), images)
    if name == "equalize":
        return _equalize(images)
    if name in ("brightness", "contrast", "saturation", "sharpness"):
        other = _without(name, images)
        return other + (1 + 0.9 * strength) * (images - other)
    return images


def _without(name: str, images: Tensor) -> Tensor:
    """Return the images without any brightness, contrast, saturation or sharpness."""
    if name == "brightness":
        return torch.zeros_like(images)
    if name == "sharpness":
        padded = functional.pad(images, (1, 1, 1, 1), mode="replicate")
        return (9 * functional.avg_pool2d(padded, 3, 1) + 4 * images) / 13
    gray = images.mean(1, keepdim=True)
    # Rounded, the mean does not depend on the order in which it is summed.
    return gray if name == "saturation" else gray.mean((2, 3), keepdim=True).round()


def _equalize(images: Tensor) -> Tensor:
    """Return images of which each channel has an even histogram."""
    values = images.long().flatten(2)  # (rows, channels, pixels)
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.long)
    ranks = counts.scatter_add_(2, values, torch.ones_like(values)).cumsum(2)
    first = ranks.gather(2, values.amin(2, keepdim=True))  # pixels of the lowest value
    above = values.shape[2] - first
    levels = (ranks - first).clamp(min=0) * 255 / above.clamp(min=1)
    return torch.where(above > 0, levels.gather(2, values), values.float()).view_as(images)
