"""Interfaces between the training loop and models, losses, batches and data."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from regard.models.model import BatchLoss


@runtime_checkable
class Trainable(Protocol):
    """Model that can be trained: an nn.Module with these two methods."""

    def loss(self, batch: Any) -> BatchLoss:
        """Return the summed loss of a batch."""

    def count(self, batch: Any) -> int:
        """Return the number of target tokens of a batch, without running the model."""


@runtime_checkable
class TrainingBatches(Protocol):
    """Training data in batches, in a reproducible order."""

    def plan(self, epoch: int) -> Sequence[tuple[int, ...]]:
        """Return the row indices of each batch of an epoch, a pure function of seed and epoch."""

    def collate(self, epoch: int, indices: tuple[int, ...]) -> Any:
        """Return the batch of these rows with the augmentation of the epoch; a pure function.

        A batch has a method `to`, which returns it on another device.
        """
