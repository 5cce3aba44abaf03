"""Trajectory head: future positions of the first track, as corrections to constant velocity.

    h       = core.encode(items)[0]                 item of the ego agent after attention
    path    y_t = t v + (W h + b)_t                 v: the last observed step
    loss    = mean over t of |y_t - target_t|, which is the metric ADE, in meters

Initially W = 0 and b = 0, so that the prediction is constant velocity.

Several futures, `paths` = K > 1: outputs (W h + b)_kt for each path k, K logits, and

    loss    = (1 - e) min_k d_k + (e / K) sum_k d_k - log p_best      d_k: ADE of path k, e = 0.05

p: softmax of the logits; best: the path of the smallest d_k ("variety loss", winner takes all). The
term with e keeps every path in training. W is then random at first, so that the paths differ.

Of a whole scene, all agents at once: the changes of agent j are those of its own item, in its own
frame, which R_j rotates to the heading of j:

    y_jt = (last position of j) + R_j^T (t v_j + (W h_j + b)_t)

Source: lectures, E.3 (set to set; trajectories of the vehicles around); the error pellegrini2009;
constant velocity scholler2020; variety loss gupta2018, section 3.4; probabilities of paths cui2019,
section 3.2; e rupprecht2017.
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
from regard.ops.copies import cpu_copy
from regard.ops.token_loss import TokenLoss

_ALL_PATHS = 0.05


class TrackHidden(NamedTuple):
    """Vector of each ego agent, and its trajectory at constant velocity."""

    vector: Float[Tensor, "rows dim"]
    baseline: Float[Tensor, "rows predicted 2"] | None
    """Constant velocity; None: positions are predicted from the vector alone."""


class Futures(NamedTuple):
    """Several predicted paths of each agent, the most probable first."""

    paths: Float[Tensor, "*agents paths predicted 2"]
    probability: Float[Tensor, "*agents paths"]


class PathHead(NamedTuple):
    """Outputs of an agent: the changes of each path, and of several paths also their logits."""

    paths: int
    predicted: int

    @property
    def size(self) -> int:
        return self.paths * (2 * self.predicted + (self.paths > 1))

    def start(self, output: Linear) -> None:
        """Set the first weights: no changes of a single path, other changes of each of several."""
        if self.paths == 1:
            nn.init.zeros_(output.weight)
        nn.init.zeros_(output.bias)

    def changes(self, outputs: Tensor) -> Float[Tensor, "*agents paths predicted 2"]:
        sizes = self.paths, self.predicted, 2
        return widen(outputs[..., : self.paths * 2 * self.predicted]).unflatten(-1, sizes)

    def loss(
        self, outputs: Tensor, change: Float[Tensor, "*agents predicted 2"]
    ) -> Float[Tensor, "*agents"]:
        distance = (self.changes(outputs) - change.unsqueeze(-3)).norm(dim=-1).mean(-1)
        if self.paths == 1:
            return distance[..., 0]
        least, best = distance.min(-1)
        surprise = -self._logits(outputs).log_softmax(-1).gather(-1, best[..., None])[..., 0]
        return (1 - _ALL_PATHS) * least + _ALL_PATHS * distance.mean(-1) + surprise

    def answer(
        self, outputs: Tensor, paths: Float[Tensor, "*agents paths predicted 2"]
    ) -> Tensor | Futures:
        """Return the only path (*agents, predicted, 2), or several sorted by their probability."""
        if self.paths == 1:
            return paths.squeeze(-3)
        probability = self._logits(outputs).softmax(-1)
        probability, order = probability.sort(dim=-1, descending=True, stable=True)
        index = order[..., None, None].expand_as(paths)
        return Futures(paths.gather(-3, index), probability)

    def _logits(self, outputs: Tensor) -> Float[Tensor, "*agents paths"]:
        return widen(outputs[..., -self.paths :])


def constant_velocity(
    own: Float[Tensor, "rows observed 2"], predicted: int
) -> Float[Tensor, "rows predicted 2"]:
    """Extrapolate the last observed step at constant velocity."""
    ahead = torch.arange(1, predicted + 1, device=own.device, dtype=own.dtype)
    return (own[:, -1:] - own[:, -2:-1]) * ahead[:, None]


class TrackWriter(VectorWriter):
    """Trajectory head, giving tracks (batch, predicted, 2), or Futures if `paths` > 1.

    from_velocity: True if the source is tracks (batch, agents, observed, 2), the ego agent first,
                   whose velocity is continued; False to predict from the items of any reader alone.
    pool:          module from the encoded items to one vector per row; by default their first, the
                   ego agent's.
    paths:         number of predicted futures.
    """

    def __init__(
        self,
        dim: int,
        predicted: int,
        *,
        from_velocity: bool = True,
        pool: nn.Module | None = None,
        dropout: float = 0.0,
        paths: int = 1,
    ):
        pool = FirstItem() if pool is None else pool
        head = PathHead(paths, predicted)
        super().__init__(dim, head.size, pool=pool, dropout=dropout)
        self.predicted, self.from_velocity, self.head = predicted, from_velocity, head
        head.start(self.output)

    def read(
        self, core: Core, encoded: Padded, *, source: Any = None, queries: Tensor | None = None
    ) -> TrackHidden:
        """Return the vector and the baseline. Raises: ValueError for another source."""
        vector = super().read(core, encoded, source=source, queries=queries)
        if not self.from_velocity:
            return TrackHidden(vector, None)
        return TrackHidden(vector, constant_velocity(_tracks_of(source)[:, 0], self.predicted))

    def shapes(self, encoded: Shape) -> tuple[Shape, Shape]:
        several = (self.head.paths,) if self.head.paths > 1 else ()
        return ("batch", self.dim or "model"), ("batch", *several, self.predicted, 2)

    def answer(self, hidden: TrackHidden) -> Tensor | Futures:
        outputs = self.scores(hidden.vector)
        paths = self.head.changes(outputs)
        if hidden.baseline is not None:
            paths = hidden.baseline.unsqueeze(-3) + paths
        return self.head.answer(outputs, paths)

    def loss(self, hidden: TrackHidden, target: Float[Tensor, "batch predicted 2"]) -> TokenLoss:
        check_target(self, target, (len(hidden.vector), self.predicted, 2))
        change = target if hidden.baseline is None else target - hidden.baseline
        total = self.head.loss(self.scores(hidden.vector), change).sum()
        return TokenLoss(total, total.detach())


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
    """Trajectory head for all agents of a scene: tracks (batch, agents, predicted, 2), zero-padded,
    or Futures (batch, agents, paths, predicted, 2) if `paths` > 1.

    The source is tracks (batch, agents, observed, 2) in a frame of the scene, in which the answer
    is, too. Each agent has the path of its own item: another order of the agents is another order
    of the paths.
    """

    part = "encoder"

    def __init__(self, dim: int, predicted: int, *, dropout: float = 0.0, paths: int = 1):
        super().__init__()
        self.dim, self.predicted, self.head = dim, predicted, PathHead(paths, predicted)
        self.dropout = Dropout(dropout)
        self.output = Linear(dim, self.head.size)
        self.head.start(self.output)

    def read(
        self, core: Core, encoded: Padded, *, source: Any = None, queries: Tensor | None = None
    ) -> SceneTrackHidden:
        """Return the encoded items of all agents. Raises: ValueError for other sources."""
        tracks = _tracks_of(source)
        frames = AgentFrames.of(tracks)
        own = frames.enter(tracks).flatten(0, 1)
        baseline = constant_velocity(own, self.predicted).unflatten(0, tracks.shape[:2])
        return SceneTrackHidden(self.dropout(encoded.items), encoded.lengths, baseline, frames)

    def answer(self, hidden: SceneTrackHidden) -> Tensor | Futures:
        outputs = self.output(hidden.items)
        changes = self.head.changes(outputs).to(hidden.baseline.dtype)
        own = (hidden.baseline.unsqueeze(-3) + changes).flatten(2, 3)
        paths = hidden.frames.leave(own).unflatten(2, changes.shape[2:4])
        return self.head.answer(outputs, paths * self._real(hidden)[..., None, None, None])

    def loss(self, hidden: SceneTrackHidden, target: Padded) -> TokenLoss:
        check_target(self, target.items, hidden.baseline.shape)
        change = hidden.frames.enter(target.items) - hidden.baseline
        distance = self.head.loss(self.output(hidden.items), change)
        total = distance.masked_fill(~self._real(hidden), 0.0).sum()
        return TokenLoss(total, total.detach())

    def count(self, target: Padded) -> int:
        return int(cpu_copy(target.lengths).sum())

    @staticmethod
    def _real(hidden: SceneTrackHidden) -> Bool[Tensor, "rows agents"]:
        position = torch.arange(hidden.items.shape[1], device=hidden.items.device)
        return position < hidden.lengths[:, None]
