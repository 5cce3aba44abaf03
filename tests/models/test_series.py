"""Time series reader: windows by hand, and padding; sources that readers of numbers refuse."""

import pytest
import torch

from regard.attention.masks import Padded
from regard.layers.positions.sinusoidal import sinusoids
from regard.models.readers.points import PointReader
from regard.models.readers.series import SeriesReader
from regard.models.readers.tracks import SceneTrackReader, TrackReader
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


READERS = {
    "series": (SeriesReader(2, 8, window=3), torch.randn(3, 7, 2)),
    "points": (PointReader(8, extent=(1, 1, 1), groups=3), torch.randn(3, 7, 3)),
    "tracks": (TrackReader(4, 8), torch.randn(3, 7, 4, 2)),
    "scenes": (SceneTrackReader(4, 8), torch.randn(3, 7, 4, 2)),
}
LENGTHS = torch.tensor([7, 3, 2])


@pytest.mark.parametrize("name", READERS)
@pytest.mark.usefixtures("no_shape_checks")
def test_numbers_of_another_shape_or_dtype_are_refused(name):
    reader, numbers = READERS[name]
    assert reader(Padded(numbers, LENGTHS)).items.isfinite().all()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert reader(Padded(numbers.bfloat16(), LENGTHS)).items.isfinite().all()
    wrong = {
        r"must be regard.Padded\(items, lengths\), got Tensor": numbers,
        r"must have items \(batch, .*\) and lengths .*, got \(7,": Padded(numbers[0], LENGTHS),
        r"must have items .*, 1\) and \(3,\)": Padded(numbers[..., :1], LENGTHS),
        r"must have items .*\) and \(1,\)": Padded(numbers, LENGTHS[:1]),
        "must be at most 7, got 9": Padded(numbers, LENGTHS + 2),
        "must be .*float.*, got torch.int64": Padded(numbers.long(), LENGTHS),
    }
    if name != "points":  # which are cast
        wrong["must be torch.float32, as its weights, got"] = Padded(numbers.double(), LENGTHS)
    for message, source in wrong.items():
        with pytest.raises((TypeError, ValueError), match=message):
            reader(source)
