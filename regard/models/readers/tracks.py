"""Track reader: one item for each track, in the frame of the first agent.

    x_j = MLP([track_j; 3 (its steps)]) + (a learned vector, if j is the ego agent)

The order of the neighbors has no effect.

The tracks of a whole scene, in one frame for all agents:

    x_j = MLP([track j in its own frame; 3 (its steps); its last position and its heading in the
    scene])

The own frame of an agent has its origin at the last observed position and its x axis along the
observed motion, so that the same walk elsewhere differs in four numbers only.

With `changes`, 10 (the changes of its steps) are inputs, too: braking, 0 at constant velocity. They
are linear in the track, but small beside the positions of vehicles.

Source: lectures, E.3 (set to set; trajectories of the vehicles around).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.linear import Linear
from regard.models.readers.reader import Reader, Shape, check_numbers

Tracks = Float[Tensor, "batch agents time 2"]
_STEP_SCALE, _CHANGE_SCALE = 3.0, 10.0
_SLOW = 1e-6


class AgentFrames(NamedTuple):
    """Frame of each agent of a scene: x in the scene = origin + x in its frame @ rotation."""

    origins: Float[Tensor, "batch agents 2"]
    rotations: Float[Tensor, "batch agents 2 2"]

    @classmethod
    def of(cls, tracks: Tracks) -> "AgentFrames":
        """Return the frames at the last positions, along the motion from first to last."""
        motion = tracks[:, :, -1] - tracks[:, :, 0]
        distance = motion.norm(dim=-1, keepdim=True)
        east = torch.tensor([1.0, 0.0], dtype=tracks.dtype, device=tracks.device)
        heading = torch.where(distance > _SLOW, motion / distance.clamp(min=_SLOW), east)
        left = torch.stack((-heading[..., 1], heading[..., 0]), -1)
        return cls(tracks[:, :, -1], torch.stack((heading, left), -2))

    def enter(self, tracks: Tracks) -> Tracks:
        """Return positions in the scene in the frame of each agent."""
        return (tracks - self.origins[:, :, None]) @ self.rotations.mT

    def leave(self, paths: Tracks) -> Tracks:
        """Return positions in the frame of each agent in the scene."""
        return self.origins[:, :, None] + paths @ self.rotations


def _motion(tracks: Tracks, changes: bool) -> Float[Tensor, "batch agents size"]:
    """Return positions and steps of each track, and with `changes` the changes of the steps."""
    steps = tracks[:, :, 1:] - tracks[:, :, :-1]
    parts = [tracks, _STEP_SCALE * steps]
    if changes:
        parts.append(_CHANGE_SCALE * (steps[:, :, 1:] - steps[:, :, :-1]))
    return torch.cat([part.flatten(2) for part in parts], -1)


def _size(observed: int, changes: bool) -> int:
    return 6 * observed - 6 if changes else 4 * observed - 2


class TrackReader(Reader):
    """Reader of tracks (batch, agents, observed, 2), the ego agent first."""

    def __init__(self, observed: int, dim: int, *, changes: bool = False):
        super().__init__()
        self.dim, self.observed, self.changes = dim, observed, changes
        size = _size(observed, changes)
        self.embed = nn.Sequential(Linear(size, dim), nn.GELU(), Linear(dim, dim))
        self.ego_embedding = nn.Parameter(torch.randn(dim) * 0.02)

    def shapes(self) -> tuple[Shape, Shape]:
        return ("batch", "agents", self.observed, 2), ("batch", "agents", self.dim or "model")

    def forward(self, source: Padded) -> Padded:
        check_numbers(self, source)
        items = self.embed(_motion(source.items, self.changes))
        ego = torch.zeros_like(items)
        ego[:, 0] = self.ego_embedding
        return Padded(items + ego, source.lengths)


class SceneTrackReader(Reader):
    """Reader of the tracks of scenes (batch, agents, observed, 2)."""

    def __init__(self, observed: int, dim: int, *, changes: bool = False):
        super().__init__()
        self.dim, self.observed, self.changes = dim, observed, changes
        size = _size(observed, changes) + 4
        self.embed = nn.Sequential(Linear(size, dim), nn.GELU(), Linear(dim, dim))

    def shapes(self) -> tuple[Shape, Shape]:
        return ("batch", "agents", self.observed, 2), ("batch", "agents", self.dim or "model")

    def forward(self, source: Padded) -> Padded:
        check_numbers(self, source)
        frames = AgentFrames.of(source.items)
        motion = _motion(frames.enter(source.items), self.changes)
        pose = torch.cat((frames.origins, frames.rotations[:, :, 0]), -1)
        return Padded(self.embed(torch.cat((motion, pose), -1)), source.lengths)
