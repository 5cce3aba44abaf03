"""Batches of images with boxes: resized to one size, and augmented in training.

Augmentation flips, scales, shifts and recolors an image, differently in each epoch. Boxes are
transformed along with it; a box of which less than a third stays inside the image is dropped.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from regard.data.annotated import AnnotatedDataset
from regard.data.batches import Batch, BatchesByCount, generator
from regard.data.elements import LabeledRegions
from regard.data.text.labels import Labels

_GRAY = 128
_CACHE_BYTES = 2 << 30
_MIN_VISIBLE = 1 / 3


class Frame(NamedTuple):
    """Size of an image in pixels, and the factors that scale its boxes to the input."""

    scale: NDArray[np.float64]
    """Factors of x, y, width and height."""
    width: int
    height: int


def fit_size(size: tuple[int, int], width: int, height: int) -> tuple[int, int]:
    """Return the size in pixels at which an image of a size fits into (width, height)."""
    fit = min(width / size[0], height / size[1])
    return max(1, round(size[0] * fit)), max(1, round(size[1] * fit))


def resize_and_pad(image: Image.Image, width: int, height: int) -> tuple[NDArray[np.uint8], Frame]:
    """Scale an image to fit into (height, width, 3), and pad it with gray."""
    size = fit_size(image.size, width, height)
    array = np.full((height, width, 3), _GRAY, np.uint8)
    array[: size[1], : size[0]] = np.asarray(image.resize(size, Image.Resampling.BILINEAR))
    # Sides are rounded, so the factors of the axes differ a little.
    scale = np.array([size[0] / image.width, size[1] / image.height] * 2)
    return array, Frame(scale, image.width, image.height)


def cache_resized(
    load: Callable[[Any], Image.Image], width: int, height: int
) -> Callable[[Any], tuple[NDArray[np.uint8], Frame]]:
    """Return a function that loads an image, resizes and pads it, and caches up to 2 GiB."""

    @lru_cache(maxsize=max(1, _CACHE_BYTES // (3 * width * height)))
    def load_resized(which: Any) -> tuple[NDArray[np.uint8], Frame]:
        return resize_and_pad(load(which), width, height)

    return load_resized


def stack_images(images: Sequence[NDArray[np.uint8]]) -> Tensor:
    """Return images (height, width, 3) as pixels (rows, 3, height, width) within [0, 1]."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous().float() / 255


@dataclass(eq=False)
class BoxBatches(BatchesByCount):
    """Batches of images. Raises UserError naming the image with a label not in `labels`."""

    data: AnnotatedDataset[Image.Image]
    labels: Labels
    _: KW_ONLY
    width: int
    height: int
    augment: bool = False

    def __post_init__(self) -> None:
        self.classes = self.data.class_indices(self.labels, "images")
        self._load = cache_resized(self.data.load, self.width, self.height)

    def collate(self, epoch: int, indices: Sequence[int]) -> Batch[Tensor, LabeledRegions]:
        """Return images (rows, 3, height, width) in [0, 1] and boxes: center and size relative to
        the image."""
        images, classes, regions = [], [], []
        sides = np.array([self.width, self.height])
        for i in indices:
            image, frame = self._load(i)
            boxes, labels = self.data.items[i].boxes, self.classes[i]
            first = boxes[:, :2].clip(min=0)
            last = (boxes[:, :2] + boxes[:, 2:]).clip(max=[frame.width, frame.height])
            boxes = np.concatenate((first, last - first), -1) * frame.scale
            if self.augment:
                draw = generator(self.seed, epoch, i)
                image, boxes, labels = _augment(image, boxes, labels, draw)
            images.append(image)
            classes.append(labels)
            centers = (boxes[:, :2] + boxes[:, 2:] / 2) / sides
            regions.append(np.concatenate((centers, boxes[:, 2:] / sides), -1))
        target = LabeledRegions.from_rows(classes, regions, 2)
        return Batch(stack_images(images), target, tuple(indices))

    def frame(self, i: int) -> Frame:
        return self._load(i)[1]


def _augment(
    image: NDArray[np.uint8],
    boxes: NDArray[np.float64],
    labels: NDArray[np.int64],
    draw: np.random.Generator,
) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.int64]]:
    height, width = image.shape[:2]
    size = np.array([width, height])
    scale = draw.uniform(0.8, 1.4)
    sign = np.where(draw.random(2) < 0.5, -1.0, 1.0)
    # new = middle + sign scale (old - middle) + shift; the shift is at most the overhang of the
    # scaled image + 5 %
    reach = (abs(scale - 1) / 2 + 0.05) * size
    middle, shift = size / 2, draw.uniform(-1, 1, 2) * reach
    slope, offset = sign * scale, middle - sign * scale * middle + shift
    # Pillow takes the inverse transform: old = (new - offset) / slope.
    inverse = (1 / slope[0], 0, -offset[0] / slope[0], 0, 1 / slope[1], -offset[1] / slope[1])
    affine, bilinear = Image.Transform.AFFINE, Image.Resampling.BILINEAR
    moved = Image.fromarray(image).transform(
        (width, height), affine, inverse, bilinear, fillcolor=(_GRAY,) * 3
    )
    pixels = np.asarray(moved, np.float32) - 128
    contrast, tint = draw.uniform(0.75, 1.25), draw.uniform(0.9, 1.1, 3)
    pixels = pixels * contrast * tint + 128 + draw.uniform(-20, 20)
    image = np.clip(pixels, 0, 255).astype(np.uint8)
    ends = np.stack((boxes[:, :2], boxes[:, :2] + boxes[:, 2:]), 1)  # (boxes, 2 ends, 2)
    ends = ends * slope + offset
    first, last = ends.min(1), ends.max(1)
    area = (last - first).prod(-1)
    first, last = np.clip(first, 0, size), np.clip(last, 0, size)
    keep = (last - first).prod(-1) >= np.maximum(_MIN_VISIBLE * area, 1.0)
    return image, np.concatenate((first, last - first), -1)[keep], labels[keep]
