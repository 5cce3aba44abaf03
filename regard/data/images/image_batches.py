"""Batches of images with their targets."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batches import Batch, BatchesByCount

ImageBatch = Batch[Tensor, Tensor]
"""Images (rows, channels, height, width) with values in [0, 1]; class indices, multi-hot rows or
numbers."""


class ImageBatches(BatchesByCount):
    """Batches of images, shuffled and augmented differently in each epoch."""

    def __init__(
        self,
        pixels: np.ndarray,
        labels: Sequence[int] | np.ndarray,
        *,
        size: int,
        seed: int,
        augment: str = "none",
    ):
        super().__init__(rows=size, seed=seed)
        self.pixels, self.labels, self.augment = pixels, np.asarray(labels), augment

    def examples(self, epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
        """Return the indices of the examples."""
        return np.arange(len(self.labels))

    def collate(self, epoch: int, indices: Sequence[int]) -> ImageBatch:
        """Return the tensors of these rows."""
        rows = self.pixels[list(indices)]
        if self.augment != "none":
            rows = np.stack(
                [self._augment(row, epoch, i) for row, i in zip(rows, indices, strict=True)]
            )
        target = torch.from_numpy(self.labels[list(indices)])
        return Batch(torch.from_numpy(rows).float() / 255, target, tuple(indices))

    def _augment(self, image: np.ndarray, epoch: int, index: int) -> np.ndarray:
        """Return the image shifted by up to an eighth of its sides with zero padding, and possibly
        flipped."""
        draw = np.random.PCG64(np.random.SeedSequence((self.seed, epoch, index))).random_raw(3)
        if self.augment == "shift-flip" and draw[2] % 2:
            image = image[:, :, ::-1]
        height, width = image.shape[1:]
        down, right = (
            int(number % (2 * (side // 8) + 1)) - side // 8
            for number, side in zip(draw[:2], (height, width), strict=True)
        )
        moved = np.zeros_like(image)
        moved[:, max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)] = (
            image[
                :, max(0, -down) : height + min(0, -down), max(0, -right) : width + min(0, -right)
            ]
        )
        return moved
