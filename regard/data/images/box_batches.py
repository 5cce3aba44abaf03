"""Batches of images with boxes: resized to one size, and augmented in training."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from regard.data.annotated import AnnotatedDataset
from regard.data.batches import Batch, BatchesByCount
from regard.data.elements import LabeledRegions
from regard.data.images.augment import augment_images, draw_numbers, move_boxes
from regard.data.text.labels import Labels

_GRAY = 128
_CACHE_BYTES = 2 << 30


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
    """Batches of images. Raises UserError naming the image with a label not in `labels`.

    augment: names of regard.data.images.augment.
    """

    data: AnnotatedDataset[Image.Image]
    labels: Labels
    _: KW_ONLY
    width: int
    height: int
    augment: Collection[str] = ()

    def __post_init__(self) -> None:
        self.classes = self.data.class_indices(self.labels, "images")
        self._load = cache_resized(self.data.load, self.width, self.height)

    def collate(self, epoch: int, indices: Sequence[int]) -> Batch[Tensor, LabeledRegions]:
        """Return images (rows, 3, height, width) in [0, 1] and boxes: center and size relative to
        the image."""
        images, size = [], (self.width, self.height)
        boxes, classes = [], [self.classes[i] for i in indices]
        for i in indices:
            image, frame = self._load(i)
            images.append(image)
            given = self.data.items[i].boxes
            first = given[:, :2].clip(min=0)
            last = (given[:, :2] + given[:, 2:]).clip(max=[frame.width, frame.height])
            boxes.append(np.concatenate((first, last - first), -1) * frame.scale)
        source = stack_images(images)
        if self.augment:
            pixels = np.stack(images).transpose(0, 3, 1, 2)
            numbers = draw_numbers(self.seed, epoch, indices)
            moved, planes = augment_images(pixels, self.augment, numbers, fill=_GRAY)
            source = moved / 255
            for row, plane in enumerate(planes):
                boxes[row], is_visible = move_boxes(boxes[row], plane, size)
                boxes[row], classes[row] = boxes[row][is_visible], classes[row][is_visible]
        regions, sides = [], np.array(size)
        for row in boxes:
            centers = (row[:, :2] + row[:, 2:] / 2) / sides
            regions.append(np.concatenate((centers, row[:, 2:] / sides), -1))
        target = LabeledRegions.from_rows(classes, regions, 2)
        return Batch(source, target, tuple(indices))

    def frame(self, i: int) -> Frame:
        return self._load(i)[1]
