"""Batches of images with their targets: augmented and mixed in training.

mixup, of an image with another of the data, which a random draw for (seed, epoch, index) chooses:

    x = s x_1 + (1 - s) x_2      y = s y_1 + (1 - s) y_2      s ~ Beta(alpha, alpha)

Source: mixup zhang2018.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard.data.batches import Batch, BatchesByCount, generator
from regard.data.images.augment import augment_images, draw_numbers

ImageBatch = Batch[Tensor, Tensor]
"""Images (rows, channels, height, width) in [0, 1]; class indices, rows of their probabilities,
multi-hot rows or numbers."""


@dataclass(eq=False)
class ImageBatches(BatchesByCount):
    """Batches of images, shuffled and augmented differently in each epoch."""

    data: NDArray[np.uint8]
    labels: NDArray[Any]
    augment: Collection[str] = field(default=(), kw_only=True)
    mixup: float = field(default=0.0, kw_only=True)
    """alpha; 0: no mixup."""
    num_classes: int = field(default=0, kw_only=True)
    """Number of classes if labels are class indices; for mixup."""

    def collate(self, epoch: int, indices: Sequence[int]) -> ImageBatch:
        pixels, target = self._read(epoch, indices)
        if self.mixup:
            partners, shares = [], []
            for index in indices:
                draw = generator(self.seed, epoch, index, 1)
                partners.append(int(draw.integers(len(self.data))))
                shares.append(draw.beta(self.mixup, self.mixup))
            others, other_target = self._read(epoch, partners)
            share = torch.tensor(shares, dtype=torch.float32)[:, None]
            if target.ndim == 1:
                target = functional.one_hot(target, self.num_classes)
                other_target = functional.one_hot(other_target, self.num_classes)
            target = share * target + (1 - share) * other_target
            share = share[..., None, None]
            pixels = share * pixels + (1 - share) * others
        return Batch(pixels / 255, target, tuple(indices))

    def _read(self, epoch: int, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the augmented pixels within 0 to 255, and the targets."""
        rows = self.data[list(indices)]
        if self.augment:
            numbers = draw_numbers(self.seed, epoch, indices)
            pixels, _ = augment_images(rows, self.augment, numbers)
        else:
            pixels = torch.from_numpy(rows).float()
        return pixels, torch.from_numpy(self.labels[list(indices)])
