"""Trajectory head: future positions of the first track, as corrections to constant velocity.

    h       = core.encode(items)[0]                 item of the ego agent after attention
    path    y_t = t v + (W h + b)_t                 v: the last observed step
    loss    = mean over t of |y_t - target_t|, which is the metric ADE, in meters

Initially W = 0 and b = 0, so that the prediction is constant velocity.

Of a whole scene, all agents at once: the changes of agent j are those of its own item, in its own
frame, which R_j rotates to the heading of j:

    y_jt = (last position of j) + R_j^T (t v_j + (W h_j + b)_t)

Source: lectures, E.3 (set to set; trajectories of the vehicles around); the error pellegrini2009;
constant velocity scholler2020.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.axes import widen
from regard.attention.masks import Padded
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.pool import FirstItem
from regard.models.cores.core import Core
from regard.models.readers.reader import Shape
from regard.models.readers.tracks import AgentFrames, Tracks
from regard.models.writers.vector import VectorWriter
from regard.models.writers.writer import Writer, check_target
from regard.ops.token_loss import TokenLoss


class TrackHidden(NamedTuple):
    """Vector of each ego agent, and its trajectory at constant velocity."""

    vector: Float[Tensor, "rows dim"]
    baseline: Float[Tensor, "rows predicted 2"] | None
    """Constant velocity; None: positions are predicted from the vector alone."""


def constant_velocity(
    own: Float[Tensor, "rows observed 2"], predicted: int
) -> Float[Tensor, "rows predicted 2"]:
    """Extrapolate the last observed step at constant velocity."""
    ahead = torch.arange(1, predicted + 1, device=own.device, dtype=own.dtype)
    return (own[:, -1:] - own[:, -2:-1]) * ahead[:, None]


class TrackWriter(VectorWriter):
    """Trajectory head, giving tracks (batch, predicted, 2).

    from_velocity: True if the source is tracks (batch, agents, observed, 2), the ego agent first,
                   whose velocity is continued; False to predict from the items of any reader alone.
    pool:          module from the encoded items to one vector per row; by default their first, the
                   ego agent's.
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
        pool = FirstItem() if pool is None else pool
        super().__init__(dim, 2 * predicted, pool=pool, dropout=dropout)
        self.predicted, self.from_velocity = predicted, from_velocity
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def read(
        self, core: Core, encoded: Padded, *, source: Any = None, queries: Tensor | None = None
    ) -> TrackHidden:
        """Return the vector and the baseline. Raises: ValueError for another source."""
        vector = super().read(core, encoded, source=source, queries=queries)
        if not self.from_velocity:
            return TrackHidden(vector, None)
        return TrackHidden(vector, constant_velocity(_tracks_of(source)[:, 0], self.predicted))

    def shapes(self, encoded: Shape) -> tuple[Shape, Shape]:
        return ("batch", self.dim or "model"), ("batch", self.predicted, 2)

    def answer(self, hidden: TrackHidden) -> Float[Tensor, "batch predicted 2"]:
        change = self._changes(hidden.vector)
        return change if hidden.baseline is None else hidden.baseline + change

    def loss(self, hidden: TrackHidden, target: Float[Tensor, "batch predicted 2"]) -> TokenLoss:
        changes = self._changes(hidden.vector)
        check_target(self, target, changes.shape)
        change = target if hidden.baseline is None else target - hidden.baseline
        total = (changes - change).norm(dim=-1).mean(-1).sum()
        return TokenLoss(total, total.detach())

    def _changes(self, vector: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch predicted 2"]:
        return widen(self.scores(vector)).unflatten(-1, (-1, 2))


def _tracks_of(source: Any) -> Tensor:
    tracks = getattr(source, "items", source)
    if not isinstance(tracks, Tensor) or tracks.ndim != 4 or tracks.shape[-1] != 2:
        raise ValueError("`source` must be tracks (batch, agents, observed, 2)")
    return tracks


class SceneTrackHidden(NamedTuple):
    """Encoded items of all agents, their trajectories at constant velocity, and their frames."""

    items: Float[Tensor, "rows agents dim"]
    lengths: Tensor
    baseline: Tracks
    """In the frame of each agent."""
    frames: AgentFrames


class SceneTrackWriter(Writer):
    """Trajectory head for all agents of a scene: tracks (batch, agents, predicted, 2), zero-padded.

    The source is tracks (batch, agents, observed, 2) in a frame of the scene, in which the answer
    is, too. Each agent has the path of its own item: another order of the agents is another order
    of the paths.
    """

    part = "encoder"

    def __init__(self, dim: int, predicted: int, *, dropout: float = 0.0):
        super().__init__()
        self.dim, self.predicted = dim, predicted
        self.dropout = Dropout(dropout)
        self.output = Linear(dim, 2 * predicted)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def read(
        self, core: Core, encoded: Padded, *, source: Any = None, queries: Tensor | None = None
    ) -> SceneTrackHidden:
        """Return the encoded items of all agents. Raises: ValueError for other sources."""
        tracks = _tracks_of(source)
        frames = AgentFrames.of(tracks)
        own = frames.enter(tracks).flatten(0, 1)
        baseline = constant_velocity(own, self.predicted).unflatten(0, tracks.shape[:2])
        return SceneTrackHidden(self.dropout(encoded.items), encoded.lengths, baseline, frames)

    def answer(self, hidden: SceneTrackHidden) -> Tracks:
        change = self._changes(hidden.items).to(hidden.baseline.dtype)
        paths = hidden.frames.leave(hidden.baseline + change)
        return paths * self._real(hidden)[..., None, None]

    def loss(self, hidden: SceneTrackHidden, target: Padded) -> TokenLoss:
        check_target(self, target.items, hidden.baseline.shape)
        change = hidden.frames.enter(target.items) - hidden.baseline
        distance = (self._changes(hidden.items) - change).norm(dim=-1).mean(-1)
        total = distance.masked_fill(~self._real(hidden), 0.0).sum()
        return TokenLoss(total, total.detach())

    def count(self, target: Padded) -> int:
        return int(target.lengths.sum())

    def _changes(self, items: Float[Tensor, "rows agents dim"]) -> Tracks:
        return widen(self.output(items)).unflatten(-1, (-1, 2))

    @staticmethod
    def _real(hidden: SceneTrackHidden) -> Bool[Tensor, "rows agents"]:
        position = torch.arange(hidden.items.shape[1], device=hidden.items.device)
        return position < hidden.lengths[:, None]
