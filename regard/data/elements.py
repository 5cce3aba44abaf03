"""The elements of sets as tensors: the boxes of images, the events of sounds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Elements:
    """The elements of each row: classes (rows, elements), -1 behind the last, and regions (rows, elements, sides)."""

    labels: Tensor
    regions: Tensor

    @classmethod
    def of(cls, labels: Sequence[NDArray[np.int64]], regions: Sequence[NDArray[np.float64]], axes: int) -> "Elements":
        """Rows of any numbers of elements, padded to the longest."""
        most = max((len(row) for row in labels), default=0)
        table = torch.full((len(labels), most), -1, dtype=torch.int64)
        places = torch.zeros(len(labels), most, 2 * axes)
        for row, (classes, where) in enumerate(zip(labels, regions, strict=True)):
            table[row, : len(classes)] = torch.from_numpy(np.asarray(classes, np.int64))
            places[row, : len(classes)] = torch.from_numpy(np.asarray(where, np.float32).reshape(-1, 2 * axes))
        return cls(table, places)

    @property
    def real(self) -> Tensor:
        """Which there are."""
        return self.labels >= 0

    def to(self, device: torch.device | str) -> "Elements":
        """The same on a device."""
        return Elements(self.labels.to(device), self.regions.to(device))
