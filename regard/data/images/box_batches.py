"""Batches of images with boxes: resized to one size, and augmented in training.

Augmentation flips, scales, shifts and recolors an image, differently in each epoch. Boxes are
transformed along with it; a box of which less than a third stays inside the image is dropped.
"""

from collections.abc import Sequence
from typing import NamedTuple

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
    """Size of an image in pixels, and the factor that scales it to the input size."""

    scale: float
    width: int
    height: int


def resize_and_pad(image: Image.Image, width: int, height: int) -> tuple[NDArray[np.uint8], Frame]:
    """Scale an image to fit into (height, width, 3), and pad it with gray."""
    scale = min(width / image.width, height / image.height)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    array = np.full((height, width, 3), _GRAY, np.uint8)
    array[: size[1], : size[0]] = np.asarray(image.resize(size, Image.Resampling.BILINEAR))
    return array, Frame(scale, image.width, image.height)


BoxBatch = Batch[Tensor, LabeledRegions]
"""Images (rows, 3, height, width) in [0, 1] and boxes: center and size relative to the image."""


class BoxBatches(BatchesByCount):
    """Batches of images, shuffled in each epoch, or in the order of the data set (is_fixed).

    Raises: UserError naming the image that has a label not in `labels`.
    """

    def __init__(
        self,
        data: AnnotatedDataset[Image.Image],
        labels: Labels,
        *,
        width: int,
        height: int,
        rows: int,
        seed: int,
        is_fixed: bool = False,
        augment: bool = False,
    ):
        super().__init__(rows=rows, seed=seed, is_fixed=is_fixed)
        self.data, self.augment = data, augment
        self.width, self.height = width, height
        self.classes = data.class_indices(labels, "images")
        self._cache: dict[int, tuple[NDArray[np.uint8], Frame]] = {}

    def examples(self, epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
        return np.arange(len(self.data))

    def collate(self, epoch: int, indices: Sequence[int]) -> BoxBatch:
        images, classes, regions = [], [], []
        sides = np.array([self.width, self.height])
        for i in indices:
            image, frame = self._image(i)
            boxes, labels = self.data.items[i].boxes * frame.scale, self.classes[i]
            if self.augment:
                draw = generator(self.seed, epoch, i)
                image, boxes, labels = _augment(image, boxes, labels, draw)
            images.append(image)
            classes.append(labels)
            centers = (boxes[:, :2] + boxes[:, 2:] / 2) / sides
            regions.append(np.concatenate((centers, boxes[:, 2:] / sides), -1))
        source = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous().float() / 255
        return Batch(source, LabeledRegions.from_rows(classes, regions, 2), tuple(indices))

    def frame(self, i: int) -> Frame:
        """Return the size of image i, and its scale."""
        return self._image(i)[1]

    def _image(self, i: int) -> tuple[NDArray[np.uint8], Frame]:
        """Return image i at the input size, and its frame; cached up to a limit of memory."""
        if i not in self._cache:
            resized = resize_and_pad(self.data.load(i), self.width, self.height)
            if (len(self._cache) + 1) * resized[0].nbytes > _CACHE_BYTES:
                return resized
            self._cache[i] = resized
        return self._cache[i]


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
    moved = Image.fromarray(image).transform(
        (width, height),
        Image.Transform.AFFINE,
        inverse,
        Image.Resampling.BILINEAR,
        fillcolor=(_GRAY,) * 3,
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
