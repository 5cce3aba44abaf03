"""A forecaster: each person reads the tracks of those around, in a frame of their own, and goes on.

    items   x_j = MLP([track_j; its steps])  (+ a vector for oneself)      one's own track and the neighbours'
    h       = core.encode(items)[0]                                        they read one another; no order among them
    path    y_t = t v + (W h)_t                                            v the last step: walking on, and changes

    loss    sum_t |y_t - target_t| / predicted                               the metric itself, in metres

Source: lectures, E (set to set); walking on at the last step as scholler2020.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.features import widen
from regard.attention.masks import Padded
from regard.models.cores.core import Core
from regard.models.model import Loss

__all__ = ["Forecaster", "Tracks"]


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


class Forecaster(nn.Module):
    """Tracks to tracks; as fresh, it lets everybody walk on as they last did."""

    def __init__(self, core: Core, *, observed: int, predicted: int, dropout: float = 0.0):
        super().__init__()
        width = core.width
        self.observed, self.predicted = observed, predicted
        self.reads = nn.Sequential(nn.Linear(4 * observed - 2, width), nn.GELU(), nn.Linear(width, width))
        self.oneself = nn.Parameter(torch.randn(width) * 0.02)
        self.core = core
        self.norm = nn.LayerNorm(core.memory_dim)
        self.dropout = nn.Dropout(dropout)
        self.writes = nn.Linear(core.memory_dim, 2 * predicted)
        nn.init.zeros_(self.writes.weight)
        nn.init.zeros_(self.writes.bias)

    def forward(self, source: Padded) -> Float[Tensor, "rows predicted 2"]:
        """Where each row's own person will be, in metres from where they are."""
        tracks = source.items
        steps = tracks[:, :, 1:] - tracks[:, :, :-1]
        items = self.reads(torch.cat((tracks.flatten(2), 3 * steps.flatten(2)), -1))
        own = torch.zeros_like(items)
        own[:, 0] = self.oneself
        hidden = self.core.encode(source._replace(items=items + own)).items[:, 0]
        change = self.writes(self.dropout(self.norm(hidden))).unflatten(-1, (self.predicted, 2))
        ahead = torch.arange(1, self.predicted + 1, device=tracks.device, dtype=change.dtype)
        return steps[:, 0, -1:] * ahead[:, None] + change

    def loss(self, batch: Tracks) -> Loss:
        """The mean distance over time, summed over the rows."""
        total = (widen(self(batch.source)) - batch.target).norm(dim=-1).mean(-1).sum()
        return Loss(total, total.detach(), self.count(batch))

    def count(self, batch: Tracks) -> int:
        """Rows of a batch."""
        return len(batch.target)

    def blocks(self) -> list[nn.Module]:
        """Parts that may be sharded each on its own."""
        return self.core.blocks()
