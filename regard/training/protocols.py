"""Interfaces between the training loop and models, losses, batches and data."""

from collections.abc import Sequence
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class TrainingLoss(Protocol):
    """Loss of a batch."""

    @property
    def total(self) -> Tensor:
        """Loss to differentiate, summed over the target tokens; 0-d."""

    @property
    def nll(self) -> Tensor:
        """Loss to report: sum of -log p over target tokens, without smoothing; 0-d, detached."""


@runtime_checkable
class TrainingBatch(Protocol):
    """Batch of rows, ready for the model."""

    def to(self, device: torch.device) -> Self:
        """Return the batch on another device."""


@runtime_checkable
class Trainable(Protocol):
    """Model that can be trained: an nn.Module with these two methods."""

    def loss(self, batch: Any) -> TrainingLoss:
        """Return the summed loss of a batch."""

    def count(self, batch: Any) -> int:
        """Return the number of target tokens of a batch, without running the model."""


@runtime_checkable
class TrainingBatches(Protocol):
    """Training data in batches, in a reproducible order."""

    def plan(self, epoch: int) -> Sequence[tuple[int, ...]]:
        """Return the row indices of each batch of an epoch, a pure function of seed and epoch."""

    def collate(self, epoch: int, indices: tuple[int, ...]) -> TrainingBatch:
        """Return the batch of these rows with the augmentation of the epoch; a pure function."""
