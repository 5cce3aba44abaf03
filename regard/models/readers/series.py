"""Time series reader: consecutive windows of a series of numbers become items.

    x_i = W [s_{i w}; ...; s_{i w + w - 1}] + b + P_i

of windows of w steps, zero-padded at the end, with sinusoidal P.

Source: dosovitskiy2021, section 3.1, in one dimension; positions vaswani2017, section 3.5.
"""

import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.positions.sinusoidal import Sinusoidal
from regard.models.readers.reader import Reader, Shape, check_numbers


class SeriesReader(Reader):
    """Reader of padded series (batch, time, channels), giving items (batch, windows, dim).

    Lengths of the input count steps; lengths of the items count windows, the last of which may be
    incomplete.
    """

    def __init__(self, channels: int, dim: int, *, window: int, dropout: float = 0.0):
        super().__init__()
        self.dim, self.window, self.channels = dim, window, channels
        self.embed = Linear(window * channels, dim)
        self.positions = Sinusoidal(dim)
        self.dropout = Dropout(dropout)

    def shapes(self) -> tuple[Shape, Shape]:
        return ("batch", "time", self.channels), ("batch", "windows", self.dim or "model")

    def forward(self, source: Padded) -> Padded:
        check_numbers(self, source)
        series: Tensor = source.items
        steps = torch.arange(series.shape[1], device=series.device)
        series = series.masked_fill((steps >= source.lengths[:, None])[..., None], 0.0)
        series = nn.functional.pad(series, (0, 0, 0, -series.shape[1] % self.window))
        items = self.embed(series.unflatten(1, (-1, self.window)).flatten(2))
        lengths = (source.lengths + self.window - 1) // self.window
        return Padded(self.dropout(self.positions(items)), lengths)
