"""Time series reader: windows by hand, and padding."""

import pytest
import torch

from regard.attention.masks import Padded
from regard.layers.positions.sinusoidal import sinusoids
from regard.models.readers.series import SeriesReader
from tests.helpers import close


def test_windows_by_hand():
    reader = SeriesReader(2, 6, window=3)
    series = torch.randn(2, 7, 2)
    out = reader(Padded(series, torch.tensor([7, 4])))
    assert out.lengths.tolist() == [3, 2]
    full_window = series[0, 3:6].flatten() @ reader.embed.weight.T + reader.embed.bias
    close(out.items[0, 1], full_window + sinusoids(1, 1, 6)[0])
    cut = torch.cat((series[1, 3], torch.zeros(4))) @ reader.embed.weight.T + reader.embed.bias
    close(out.items[1, 1], cut + sinusoids(1, 1, 6)[0])


def test_window_below_one_raises():
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        SeriesReader(1, 4, window=0)
