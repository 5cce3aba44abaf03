"""Reads a series of numbers, of any kind and length: windows that follow one another become items.

    x_i = W [s_{i w}; ...; s_{i w + w - 1}] + b + P_i         w steps a window, zeros behind the end, P of sinusoids

Nothing is known of the numbers; for sound there is FrameReader.

Source: dosovitskiy2021, section 3.1, in one dimension; positions vaswani2017, section 3.5.
"""

import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.positions import Sinusoidal


class SeriesReader(nn.Module):
    """Series (batch, time, channels) with a length each to items (batch, windows, dim).

    A length counts steps; one of the items counts windows, the last of which may be cut short.
    Raises: ValueError if window is below 1.
    """

    def __init__(self, channels: int, dim: int, *, window: int, dropout: float = 0.0):
        super().__init__()
        if window < 1:
            raise ValueError(f"window must be at least 1, but is {window}")
        self.window = window
        self.embed = Linear(window * channels, dim)
        self.positions = Sinusoidal(dim)
        self.dropout = Dropout(dropout)

    def forward(self, source: Padded) -> Padded:
        """An item a window."""
        series: Tensor = source.items
        steps = torch.arange(series.shape[1], device=series.device)
        series = series.masked_fill((steps >= source.lengths[:, None])[..., None], 0.0)
        series = nn.functional.pad(series, (0, 0, 0, -series.shape[1] % self.window))
        items = self.embed(series.unflatten(1, (-1, self.window)).flatten(2))
        lengths = (source.lengths + self.window - 1) // self.window
        return Padded(self.dropout(self.positions(items)), lengths)
