"""Trajectory forecasting: the ego agent attends to the tracks of its neighbors, in an agent-centric frame.

    h       = core.encode(reads(tracks))[0]        item of the ego agent after attention; the neighbors are a set
    path    y_t = t v + writes(h)_t                v the last step: constant velocity, and a learned correction

Source: lectures, E (set to set); constant velocity scholler2020.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.models.cores.core import Core
from regard.models.model import BatchLoss
from regard.models.readers.tracks import TrackReader
from regard.models.writers.tracks import TrackWriter


@runtime_checkable
class ForecastingBatch(Protocol):
    """Training batch of a forecaster: observed tracks, the ego agent first, and its future track."""

    @property
    def source(self) -> Padded:
        """Observed tracks (rows, agents, observed, 2)."""
        ...

    @property
    def target(self) -> Float[Tensor, "rows predicted 2"]:
        """Future positions of the ego agent of each row."""
        ...


def constant_velocity(own: Float[Tensor, "rows observed 2"], predicted: int) -> Float[Tensor, "rows predicted 2"]:
    """Extrapolate the last observed step at constant velocity."""
    ahead = torch.arange(1, predicted + 1, device=own.device, dtype=own.dtype)
    return (own[:, -1:] - own[:, -2:-1]) * ahead[:, None]


class Forecaster(nn.Module):
    """Forecaster of tracks. At initialization it predicts constant velocity."""

    def __init__(self, reads: TrackReader, core: Core, writes: TrackWriter):
        super().__init__()
        self.reads = reads
        self.core = core
        self.writes = writes

    def vector(self, source: Padded) -> Float[Tensor, "rows dim"]:
        """Return the vector of the ego agent of each row, after attention to all tracks."""
        return self.core.encode(self.reads(source)).items[:, 0]

    def forward(self, source: Padded) -> Float[Tensor, "rows predicted 2"]:
        """Return the future positions of the ego agents, in meters relative to their current positions."""
        change = self.writes(self.vector(source))
        return constant_velocity(source.items[:, 0], change.shape[1]) + change

    def loss(self, batch: ForecastingBatch) -> BatchLoss:
        """Return the distance averaged over time and summed over the rows (ADE)."""
        change = batch.target - constant_velocity(batch.source.items[:, 0], batch.target.shape[1])
        total, nll = self.writes.loss(self.vector(batch.source), change)
        return BatchLoss(total, nll, self.count(batch))

    def count(self, batch: ForecastingBatch) -> int:
        """Return the number of rows of a batch."""
        return len(batch.target)

    def blocks(self) -> list[nn.Module]:
        """Return the modules that may be sharded one by one (FSDP)."""
        return self.core.blocks()
