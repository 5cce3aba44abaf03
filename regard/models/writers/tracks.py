"""Trajectory head: future positions of the first of the observed tracks, as corrections to constant velocity.

    h       = core.encode(items)[0]                 item of the ego agent after attention; the neighbors are a set
    path    y_t = t v + (W h + b)_t                 v: the last observed step
    loss    = mean over t of |y_t - target_t|, which is the metric ADE, in meters

Initially W = 0 and b = 0, so that the prediction is constant velocity.

Source: lectures, E.3 (set to set); the error pellegrini2009; constant velocity scholler2020.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.axes import widen
from regard.attention.masks import Padded
from regard.layers.pool import FirstItem
from regard.models.cores.core import Core
from regard.models.writers.vector import VectorWriter
from regard.ops.token_loss import TokenLoss


class TrackHidden(NamedTuple):
    """Vector of each ego agent, and its trajectory at constant velocity."""

    vector: Float[Tensor, "rows dim"]
    baseline: Float[Tensor, "rows predicted 2"] | None
    """Constant velocity; None: positions are predicted from the vector alone."""


def constant_velocity(own: Float[Tensor, "rows observed 2"], predicted: int) -> Float[Tensor, "rows predicted 2"]:
    """Extrapolate the last observed step at constant velocity."""
    ahead = torch.arange(1, predicted + 1, device=own.device, dtype=own.dtype)
    return (own[:, -1:] - own[:, -2:-1]) * ahead[:, None]


class TrackWriter(VectorWriter):
    """Trajectory head, giving tracks (batch, predicted, 2).

    from_velocity: True if the source is tracks (batch, agents, observed, 2), the ego agent first, whose velocity is
                   continued; False to predict from the items of any reader alone.
    pool:          module from the encoded items to one vector per row; by default their first, the ego agent's.
    """

    def __init__(
        self,
        dim: int,
        predicted: int,
        *,
        from_velocity: bool = True,
        pool: nn.Module | None = None,
        dropout: float = 0.0,
    ):
        super().__init__(dim, 2 * predicted, pool=FirstItem() if pool is None else pool, dropout=dropout)
        self.predicted, self.from_velocity = predicted, from_velocity
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def read(self, core: Core, encoded: Padded, *, source: Any = None, queries: Tensor | None = None) -> TrackHidden:
        """Return the pooled vector of each row, and the ego agent's path at constant velocity.

        Raises: ValueError if the source is not tracks, with from_velocity.
        """
        vector = super().read(core, encoded, source=source, queries=queries)
        if not self.from_velocity:
            return TrackHidden(vector, None)
        tracks = getattr(source, "items", source)
        if not isinstance(tracks, Tensor) or tracks.ndim != 4 or tracks.shape[-1] != 2:
            raise ValueError(
                "`source` must be tracks (batch, agents, observed, 2) with from_velocity=True, got another input: "
                "construct the writer with from_velocity=False"
            )
        return TrackHidden(vector, constant_velocity(tracks[:, 0], self.predicted))

    def answer(self, hidden: TrackHidden) -> Float[Tensor, "batch predicted 2"]:
        """Return the positions at each step, in meters relative to the current position."""
        change = self._changes(hidden.vector)
        return change if hidden.baseline is None else hidden.baseline + change

    def loss(self, hidden: TrackHidden, target: Float[Tensor, "batch predicted 2"]) -> TokenLoss:
        """Return the distance averaged over time and summed over the rows (ADE)."""
        change = target if hidden.baseline is None else target - hidden.baseline
        total = (self._changes(hidden.vector) - change).norm(dim=-1).mean(-1).sum()
        return TokenLoss(total, total.detach())

    def _changes(self, vector: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch predicted 2"]:
        return widen(self.scores(vector)).unflatten(-1, (-1, 2))
