"""Targets of set prediction as padded tensors: the boxes of images, the events of sounds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class LabeledRegions:
    """Padded sets: labels (rows, elements), padded with -1; regions (rows, elements, sides)."""

    labels: Tensor
    regions: Tensor

    @classmethod
    def from_rows(
        cls, labels: Sequence[NDArray[np.int64]], regions: Sequence[NDArray[np.float64]], axes: int
    ) -> "LabeledRegions":
        """Pad rows of different numbers of elements to the longest."""
        longest = max((len(row) for row in labels), default=0)
        padded_labels = torch.full((len(labels), longest), -1, dtype=torch.int64)
        padded_regions = torch.zeros(len(labels), longest, 2 * axes)
        for row, (classes, sides) in enumerate(zip(labels, regions, strict=True)):
            padded_labels[row, : len(classes)] = torch.from_numpy(np.asarray(classes, np.int64))
            values = np.asarray(sides, np.float32).reshape(-1, 2 * axes)
            padded_regions[row, : len(classes)] = torch.from_numpy(values)
        return cls(padded_labels, padded_regions)

    @property
    def real(self) -> Tensor:
        """Mask (rows, elements): True for elements, False for padding."""
        return self.labels >= 0

    def to(self, device: torch.device | str) -> "LabeledRegions":
        """Copy the tensors to a device."""
        return LabeledRegions(self.labels.to(device), self.regions.to(device))
