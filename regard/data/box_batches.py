"""Batches of images with their boxes, scaled to one size, and what training does to them.

Training mirrors an image, scales and moves it, and changes its light, another way in each epoch; boxes go along, and
one of which less than a third remains in sight is dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from regard.data.boxes import Annotated
from regard.data.elements import Elements
from regard.data.labeled import Labels
from regard.errors import UserError

_GRAY = 128
_KEPT_BYTES = 2 << 30
_IN_SIGHT = 1 / 3


@dataclass(frozen=True)
class BoxBatch:
    """Images within [0, 1] (rows, 3, height, width) and their boxes: center and size as shares of the sides."""

    source: Tensor
    target: Elements
    indices: tuple[int, ...]

    def to(self, device: torch.device | str) -> "BoxBatch":
        """The same batch on a device."""
        return BoxBatch(self.source.to(device, non_blocking=True), self.target.to(device), self.indices)


def fitted(image: Image.Image, width: int, height: int) -> tuple[NDArray[np.uint8], float]:
    """The image (height, width, 3), scaled to fit in and gray behind its right or lower edge, and the scale."""
    scale = min(width / image.width, height / image.height)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    array = np.full((height, width, 3), _GRAY, np.uint8)
    array[: size[1], : size[0]] = np.asarray(image.resize(size, Image.Resampling.BILINEAR))
    return array, scale


class BoxBatches:
    """Batches in an order of their own for each epoch, or (is_fixed) in the images' own order.

    Raises: UserError naming the image whose label is none of `labels`.
    """

    def __init__(
        self,
        data: Annotated,
        labels: Labels,
        *,
        width: int,
        height: int,
        rows: int,
        seed: int,
        is_fixed: bool = False,
        augment: bool = False,
    ):
        self.data, self.rows, self.seed, self.is_fixed, self.augment = data, rows, seed, is_fixed, augment
        self.width, self.height = width, height
        known = {name: number for number, name in enumerate(labels.names)}
        for item in data.items:
            for label in item.labels:
                if label not in known:
                    raise UserError(
                        f"{item.where}: label {label!r} of {item.file} is none of those of the training images: "
                        f"{', '.join(labels.names[:20])}."
                    )
        self.classes = [np.array([known[label] for label in item.labels], np.int64) for item in data.items]
        self._kept: dict[int, tuple[NDArray[np.uint8], float]] = {}

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        """The rows of each batch: a pure function of (seed, epoch)."""
        draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.seed, epoch))))
        order = np.arange(len(self.data)) if self.is_fixed else draw.permutation(len(self.data))
        return [tuple(order[i : i + self.rows].tolist()) for i in range(0, len(order), self.rows)]

    def collate(self, epoch: int, indices: Sequence[int]) -> BoxBatch:
        """The tensors of these images."""
        images, classes, regions = [], [], []
        for i in indices:
            image, scale = self._image(i)
            boxes, labels = self.data.items[i].boxes * scale, self.classes[i]
            if self.augment:
                draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.seed, epoch, i))))
                image, boxes, labels = _changed(image, boxes, labels, draw)
            images.append(image)
            classes.append(labels)
            sides = np.array([self.width, self.height])
            regions.append(np.concatenate(((boxes[:, :2] + boxes[:, 2:] / 2) / sides, boxes[:, 2:] / sides), -1))
        source = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous().float() / 255
        return BoxBatch(source, Elements.of(classes, regions, 2), tuple(indices))

    def scale(self, i: int) -> float:
        """By how much image i is scaled to what the model sees."""
        return self._image(i)[1]

    def _image(self, i: int) -> tuple[NDArray[np.uint8], float]:
        """The image at the model's size; kept while there is room for it."""
        if i not in self._kept:
            found = fitted(self.data.draw(i), self.width, self.height)
            if (len(self._kept) + 1) * found[0].nbytes > _KEPT_BYTES:
                return found
            self._kept[i] = found
        return self._kept[i]


def _changed(
    image: NDArray[np.uint8], boxes: NDArray[np.float64], labels: NDArray[np.int64], draw: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.int64]]:
    height, width = image.shape[:2]
    scale = draw.uniform(0.8, 1.4)
    sign = np.where(draw.random(2) < 0.5, -1.0, 1.0)
    # new = middle + sign scale (old - middle) + shift, the shift as far as the image reaches over the edge, and a tenth
    reach = (abs(scale - 1) / 2 + 0.05) * np.array([width, height])
    middle, shift = np.array([width, height]) / 2, draw.uniform(-1, 1, 2) * reach
    slope, offset = sign * scale, middle - sign * scale * middle + shift
    # Pillow asks where each new point was: old = (new - offset) / slope.
    where = (1 / slope[0], 0, -offset[0] / slope[0], 0, 1 / slope[1], -offset[1] / slope[1])
    moved = Image.fromarray(image).transform(
        (width, height), Image.Transform.AFFINE, where, Image.Resampling.BILINEAR, fillcolor=(_GRAY,) * 3
    )
    light = np.asarray(moved, np.float32) - 128
    light = light * draw.uniform(0.75, 1.25) * draw.uniform(0.9, 1.1, 3) + 128 + draw.uniform(-20, 20)
    image = np.clip(light, 0, 255).astype(np.uint8)
    ends = np.stack((boxes[:, :2], boxes[:, :2] + boxes[:, 2:]), 1) * slope + offset  # (boxes, 2 ends, 2)
    first, last = ends.min(1), ends.max(1)
    whole = (last - first).prod(-1)
    first, last = np.clip(first, 0, (width, height)), np.clip(last, 0, (width, height))
    keep = (last - first).prod(-1) >= np.maximum(_IN_SIGHT * whole, 1.0)
    return image, np.concatenate((first, last - first), -1)[keep], labels[keep]
