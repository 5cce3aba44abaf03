"""Batches of images with their targets."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageBatch:
    """Images with values in [0, 1], and their targets: class indices, multi-hot rows or numbers."""

    source: Tensor
    """(rows, channels, height, width)"""
    target: Tensor
    indices: tuple[int, ...]

    def to(self, device: torch.device | str) -> "ImageBatch":
        """Return the batch on a device."""
        source, target = (tensor.to(device, non_blocking=True) for tensor in (self.source, self.target))
        return ImageBatch(source, target, self.indices)


class ImageBatches:
    """Batches of images, shuffled and augmented differently in each epoch."""

    def __init__(
        self, pixels: np.ndarray, labels: Sequence[int] | np.ndarray, *, size: int, seed: int, augment: str = "none"
    ):
        self.pixels, self.labels = pixels, np.asarray(labels)
        self.size, self.seed, self.augment = size, seed, augment

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        """Return the rows of each batch, a pure function of (seed, epoch)."""
        order = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.seed, epoch)))).permutation(
            len(self.labels)
        )
        return [tuple(order[i : i + self.size].tolist()) for i in range(0, len(order), self.size)]

    def collate(self, epoch: int, indices: Sequence[int]) -> ImageBatch:
        """Return the tensors of these rows."""
        rows = self.pixels[list(indices)]
        if self.augment != "none":
            rows = np.stack([self._augment(row, epoch, i) for row, i in zip(rows, indices, strict=True)])
        target = torch.from_numpy(self.labels[list(indices)])
        return ImageBatch(torch.from_numpy(rows).float() / 255, target, tuple(indices))

    def _augment(self, image: np.ndarray, epoch: int, index: int) -> np.ndarray:
        """Return the image shifted by up to an eighth of its sides with zero padding, and possibly flipped."""
        draw = np.random.PCG64(np.random.SeedSequence((self.seed, epoch, index))).random_raw(3)
        if self.augment == "shift-flip" and draw[2] % 2:
            image = image[:, :, ::-1]
        height, width = image.shape[1:]
        down, right = (
            int(number % (2 * (side // 8) + 1)) - side // 8
            for number, side in zip(draw[:2], (height, width), strict=True)
        )
        moved = np.zeros_like(image)
        moved[:, max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)] = image[
            :, max(0, -down) : height + min(0, -down), max(0, -right) : width + min(0, -right)
        ]
        return moved
