"""Targets of set prediction as padded tensors: the boxes of images, the events of sounds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.data.batches import pad_arrays
from regard.ops.copies import copy_to


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
        sides = [np.asarray(row, np.float32).reshape(-1, 2 * axes) for row in regions]
        classes = [torch.from_numpy(row) for row in labels]
        padded = pad_sequence(classes, batch_first=True, padding_value=-1)
        return cls(padded, pad_arrays(sides).items)

    def to(self, device: torch.device | str) -> "LabeledRegions":
        return LabeledRegions(copy_to(self.labels, device), copy_to(self.regions, device))
