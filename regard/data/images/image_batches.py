"""Batches of images with their targets."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batches import Batch, BatchesByCount

ImageBatch = Batch[Tensor, Tensor]
"""Images (rows, channels, height, width) in [0, 1]; class indices, multi-hot rows or numbers."""


@dataclass(eq=False)
class ImageBatches(BatchesByCount):
    """Batches of images, shuffled and augmented differently in each epoch."""

    data: NDArray[np.uint8]
    labels: NDArray[Any]
    augment: str = field(default="none", kw_only=True)

    def collate(self, epoch: int, indices: Sequence[int]) -> ImageBatch:
        rows = self.data[list(indices)]
        if self.augment != "none":
            pairs = zip(rows, indices, strict=True)
            rows = np.stack([self._augment(row, epoch, i) for row, i in pairs])
        target = torch.from_numpy(self.labels[list(indices)])
        return Batch(torch.from_numpy(rows).float() / 255, target, tuple(indices))

    def _augment(self, image: np.ndarray, epoch: int, index: int) -> np.ndarray:
        """Shift an image by up to an eighth of its sides with zero padding, and maybe flip it."""
        draw = np.random.PCG64(np.random.SeedSequence((self.seed, epoch, index))).random_raw(3)
        if self.augment == "shift-flip" and draw[2] % 2:
            image = image[:, :, ::-1]
        slices_to, slices_from = [slice(None)], [slice(None)]
        for number, side in zip(draw[:2], image.shape[1:], strict=True):
            shift = int(number % (2 * (side // 8) + 1)) - side // 8
            slices_to.append(slice(max(0, shift), side + min(0, shift)))
            slices_from.append(slice(max(0, -shift), side + min(0, -shift)))
        moved = np.zeros_like(image)
        moved[tuple(slices_to)] = image[tuple(slices_from)]
        return moved
