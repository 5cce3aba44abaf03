"""Reads tracks: where each one has been, as seen by the first, becomes an item.

    x_j = MLP([track_j; 3 (its steps)]) + (a vector of one's own, if j is oneself)

Steps are small beside places, and matter more: hence the three. The order of the others plays no part.

Source: lectures, E (set to set).
"""

import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.linear import Linear

_STEP_SCALE = 3.0


class TrackReader(nn.Module):
    """Tracks (batch, people, observed, 2), oneself first, to items (batch, people, dim)."""

    def __init__(self, observed: int, dim: int):
        super().__init__()
        self.embed = nn.Sequential(Linear(4 * observed - 2, dim), nn.GELU(), Linear(dim, dim))
        self.oneself = nn.Parameter(torch.randn(dim) * 0.02)

    def forward(self, source: Padded) -> Padded:
        """An item a track, lengths unchanged."""
        tracks: Tensor = source.items
        steps = tracks[:, :, 1:] - tracks[:, :, :-1]
        items = self.embed(torch.cat((tracks.flatten(2), _STEP_SCALE * steps.flatten(2)), -1))
        own = torch.zeros_like(items)
        own[:, 0] = self.oneself
        return Padded(items + own, source.lengths)
