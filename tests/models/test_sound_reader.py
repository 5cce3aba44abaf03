"""Sound reader: mel filters by definition, the band of a tone, centers of items."""

import math

import pytest
import torch

from regard.data.sound.events import MaskedSounds
from regard.layers.convolutions import Refine, Stem
from regard.models.readers.sound import FrameReader, LogMel, mel_filters
from tests.helpers import close


def test_mel_filters_are_triangles_between_neighbors():
    filters = mel_filters(20, 513, 8000)
    hertz = torch.linspace(0, 4000, 513)
    mel = 2595 * torch.log10(1 + hertz / 700)
    step = 2595 * math.log10(1 + 4000 / 700) / 21
    for band in (0, 7, 19):
        inside = (mel > band * step) & (mel < (band + 2) * step)
        assert ((filters[band] > 0) == inside).all()
        peak = 700 * (10 ** ((band + 1) * step / 2595) - 1)
        assert abs(hertz[filters[band].argmax()] - peak) <= 4000 / 512
    assert filters.max() <= 1


@pytest.mark.parametrize("pitch", [300, 1200, 3000])
def test_a_tone_is_in_its_band_and_at_its_time(pitch):
    time = torch.arange(8000) / 8000
    sound = torch.sin(2 * math.pi * pitch * time) * ((time > 0.5) & (time < 0.8))
    bands = LogMel(8000, 30)(sound[None])[0]
    assert bands.shape == (30, 100)
    mel = 2595 * math.log10(1 + pitch / 700)
    step = 2595 * math.log10(1 + 4000 / 700) / 31
    assert abs(int(bands[:, 65].argmax()) - (mel / step - 1)) < 1
    loud = bands.max(0).values > bands.max() - 3
    assert abs(int(loud.nonzero().min()) - 50) <= 2
    assert abs(int(loud.nonzero().max()) - 80) <= 2


def test_spectrogram_does_not_depend_on_loudness():
    sound = torch.randn(1, 4000)
    spectrum = LogMel(8000, 20)
    assert (spectrum(sound) - spectrum(0.3 * sound)).abs().max() < 0.01
    assert spectrum(torch.zeros(1, 4000)).isfinite().all()


def test_items_are_centered_on_their_frames():
    reader = FrameReader(8000, 16, sample_rate=8000, bands=20, channels=16, downsampling_layers=2)
    items = reader(torch.randn(3, 8000))
    assert items.items.shape == (3, 25, 16)
    # Frames 0 .. 3 are centered on 0, 10, 20, 30 ms.
    close(reader.centers[:2, 0], torch.tensor([0.015, 0.055]))


def test_stem_halves_the_sides_the_given_number_of_times():
    for downsampling_layers, side in ((1, 15), (2, 8), (3, 4), (4, 2)):
        stem = Stem(3, 32, downsampling_layers=downsampling_layers)
        assert stem(torch.randn(2, 3, 30, 30)).shape == (2, 32, side, side)
    with pytest.raises(ValueError, match="downsampling_layers must be at least 1, got 0"):
        Stem(3, 32, downsampling_layers=0)


def test_untrained_residual_block_is_the_activation():
    x = torch.randn(2, 8, 5, 5)
    close(Refine(8)(x), torch.nn.functional.gelu(x))


def test_masked_places_of_the_spectrogram_are_the_mean():
    reader = FrameReader(800, 8, sample_rate=2000, bands=8, channels=8)
    mask = torch.zeros(2, 8, 40, dtype=torch.bool)
    mask[0, 2:5], mask[1, :, 7:9] = True, True
    sound, seen = torch.randn(2, 800), []
    reader.stem.register_forward_pre_hook(lambda stem, given: seen.append(given[0][:, 0]))
    reader(MaskedSounds(sound, mask))
    assert ((seen[0] == 0) == mask).all()
    assert (seen[0] == reader.spectrum(sound))[~mask].all()
