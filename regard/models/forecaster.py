"""A forecaster: each person reads the tracks of those around, in a frame of their own, and goes on.

    h       = core.encode(reads(tracks))[0]        one's own item, having read the others'; no order among them
    path    y_t = t v + writes(h)_t                v the last step: walking on, and changes

Source: lectures, E (set to set); walking on at the last step as scholler2020.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.models.cores.core import Core
from regard.models.model import Loss
from regard.models.reads.tracks import TrackReader
from regard.models.writes.tracks import TrackWriter


@runtime_checkable
class Tracks(Protocol):
    """What a forecaster learns from: views, oneself first, and one's own way after them."""

    @property
    def source(self) -> Padded:
        """(rows, people, observed, 2)"""
        ...

    @property
    def target(self) -> Float[Tensor, "rows predicted 2"]:
        """Where each row's own person is afterwards."""
        ...


def walking_on(own: Float[Tensor, "rows observed 2"], predicted: int) -> Float[Tensor, "rows predicted 2"]:
    """Every step like the last one, from where one is."""
    ahead = torch.arange(1, predicted + 1, device=own.device, dtype=own.dtype)
    return (own[:, -1:] - own[:, -2:-1]) * ahead[:, None]


class Forecaster(nn.Module):
    """Tracks to tracks; as fresh, it lets everybody walk on as they last did."""

    def __init__(self, reads: TrackReader, core: Core, writes: TrackWriter):
        super().__init__()
        self.reads = reads
        self.core = core
        self.writes = writes

    def vector(self, source: Padded) -> Float[Tensor, "rows dim"]:
        """What each row's own person made of all."""
        return self.core.encode(self.reads(source)).items[:, 0]

    def forward(self, source: Padded) -> Float[Tensor, "rows predicted 2"]:
        """Where each row's own person will be, in meters from where they are."""
        change = self.writes(self.vector(source))
        return walking_on(source.items[:, 0], change.shape[1]) + change

    def loss(self, batch: Tracks) -> Loss:
        """The mean distance over time, summed over the rows."""
        change = batch.target - walking_on(batch.source.items[:, 0], batch.target.shape[1])
        total, nll = self.writes.loss(self.vector(batch.source), change)
        return Loss(total, nll, self.count(batch))

    def count(self, batch: Tracks) -> int:
        """Rows of a batch."""
        return len(batch.target)

    def blocks(self) -> list[nn.Module]:
        """Parts that may be sharded each on its own."""
        return self.core.blocks()
