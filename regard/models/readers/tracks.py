"""Track reader: one item for each track, in the frame of the first agent.

    x_j = MLP([track_j; 3 (its steps)]) + (a learned vector, if j is the ego agent)

Steps are smaller than positions and more informative: hence the factor 3. The order of the neighbors has no effect.

Source: lectures, E.3 (set to set).
"""

import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.linear import Linear
from regard.models.readers.reader import Reader

_STEP_SCALE = 3.0


class TrackReader(Reader):
    """Reader of tracks (batch, agents, observed, 2), the ego agent first, giving items (batch, agents, dim)."""

    def __init__(self, observed: int, dim: int):
        super().__init__()
        self.dim, self.observed = dim, observed
        self.embed = nn.Sequential(Linear(4 * observed - 2, dim), nn.GELU(), Linear(dim, dim))
        self.ego_embedding = nn.Parameter(torch.randn(dim) * 0.02)

    def forward(self, source: Padded) -> Padded:
        """Return one item per track, lengths unchanged."""
        tracks: Tensor = source.items
        steps = tracks[:, :, 1:] - tracks[:, :, :-1]
        items = self.embed(torch.cat((tracks.flatten(2), _STEP_SCALE * steps.flatten(2)), -1))
        ego = torch.zeros_like(items)
        ego[:, 0] = self.ego_embedding
        return Padded(items + ego, source.lengths)
