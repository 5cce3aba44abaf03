"""What the loop asks of a model and of its data: four small contracts."""

from collections.abc import Sequence
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Loss(Protocol):
    """What a model says of a batch."""

    @property
    def total(self) -> Tensor:
        """What is differentiated: the loss summed over the target tokens, 0-d."""
        ...

    @property
    def nll(self) -> Tensor:
        """Sum of -log p over the target tokens, without smoothing, 0-d, detached: what is reported."""
        ...


@runtime_checkable
class Batch(Protocol):
    """Some rows of the data, ready for the model."""

    @property
    def indices(self) -> tuple[int, ...]:
        """Which rows of the data these are."""
        ...

    def to(self, device: torch.device) -> Self:
        """The same batch on another device."""
        ...


@runtime_checkable
class Trainable(Protocol):
    """A model: an nn.Module that also has these two."""

    def loss(self, batch: Any) -> Loss:
        """The loss of a batch, summed."""
        ...

    def count(self, batch: Any) -> int:
        """Target tokens of a batch, without computing anything."""
        ...


@runtime_checkable
class Batches(Protocol):
    """The training data, in an order that is known beforehand."""

    def plan(self, epoch: int) -> Sequence[tuple[int, ...]]:
        """The rows of each batch of an epoch, in order: a pure function of the data's seed and the epoch."""
        ...

    def collate(self, epoch: int, indices: tuple[int, ...]) -> Batch:
        """The batch of these rows, as the epoch shows them: a pure function too."""
        ...
