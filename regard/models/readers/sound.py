"""Sound reader: log-mel spectrogram and convolutions, with one item for each time interval.

    S[t, f]   = |sum_n w_n x_{t hop + n} e^{-2 pi i f n / N}|^2     power, Hann window w of 25 ms
    M[t, b]   = log(sum_f mel_b(f) S[t, f] + c)                     triangles on the mel scale
    mel(f)    = 2595 log10(1 + f / 700)                             f in Hz
    x_i       = W [output of the convolutions at time i, all bands] + P_i

M is normalized to mean 0 and standard deviation 1 over each sound, so that it does not depend on
loudness. Training masks two random ranges of up to `hidden` adjacent bands in each sound (frequency
masking).

Source: davis1980 (mel filters); stevens1937 (mel scale); convolutions before attention xiao2021;
frequency masking park2019.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.axes import widen
from regard.attention.masks import Unpadded
from regard.layers.convolutions import Stem
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.positions.sinusoidal import sinusoids
from regard.models.readers.reader import Reader, Shape


def mel_filters(bands: int, bins: int, sample_rate: int) -> Float[Tensor, "bands bins"]:
    """Return triangular filters, evenly spaced on the mel scale from 0 to half the sample rate."""
    top = 2595 * math.log10(1 + sample_rate / 2 / 700)
    hertz = 700 * (10 ** (torch.linspace(0, top, bands + 2, dtype=torch.float64) / 2595) - 1)
    frequency = torch.linspace(0, sample_rate / 2, bins, dtype=torch.float64)
    low, middle, high = hertz[:-2, None], hertz[1:-1, None], hertz[2:, None]
    rise, fall = (frequency - low) / (middle - low), (high - frequency) / (high - middle)
    return torch.minimum(rise, fall).clamp(min=0).float()


class LogMel(nn.Module):
    """Log-mel spectrogram (batch, bands, frames) of sound (batch, samples)."""

    def __init__(self, sample_rate: int, bands: int, *, hop: float = 0.01):
        super().__init__()
        self.hop, length = round(hop * sample_rate), round(0.025 * sample_rate)
        self.size = 1 << (length - 1).bit_length()
        self.register_buffer("_window", torch.hann_window(length), persistent=False)
        filters = mel_filters(bands, self.size // 2 + 1, sample_rate)
        self.register_buffer("_filters", filters, persistent=False)

    def forward(self, sound: Float[Tensor, "batch samples"]) -> Float[Tensor, "batch bands frames"]:
        with torch.autocast(sound.device.type, enabled=False):
            spectrum = torch.stft(
                widen(sound),
                self.size,
                hop_length=self.hop,
                win_length=len(self._window),
                window=self._window,
                pad_mode="constant",
                return_complex=True,
            )[..., :-1]
            bands = torch.log(self._filters @ spectrum.abs().square() + 1e-6)
            mean = bands.mean((1, 2), keepdim=True)
            return (bands - mean) / (bands.std((1, 2), keepdim=True) + 1e-3)


def hide_bands(
    bands: Float[Tensor, "batch bands frames"], most: int
) -> Float[Tensor, "batch bands frames"]:
    """Set two random ranges of 0 to `most` bands to 0, the mean. (park2019)"""
    band = torch.arange(bands.shape[1], device=bands.device)
    for _ in range(2):
        width = torch.randint(0, most + 1, (len(bands), 1), device=bands.device)
        share = torch.rand(len(bands), 1, device=bands.device)
        first = (share * (bands.shape[1] - width + 1)).long()
        bands = bands.masked_fill(((band >= first) & (band < first + width))[..., None], 0.0)
    return bands


class FrameReader(Reader):
    """Reader of sound (batch, samples), giving items (batch, positions, dim) of
    2^downsampling_layers frames each.

    centers: (positions, 1), the center of each item as a share of the length.
    hidden:  largest width of the masked ranges of bands in training; 0: none.
    """

    def __init__(
        self,
        samples: int,
        dim: int,
        *,
        sample_rate: int,
        bands: int,
        hop: float = 0.01,
        channels: int = 48,
        downsampling_layers: int = 2,
        dropout: float = 0.0,
        hidden: int = 0,
    ):
        super().__init__()
        self.dim, self.hidden, self.samples = dim, hidden, samples
        self.spectrum = LogMel(sample_rate, bands, hop=hop)
        frames = samples // self.spectrum.hop
        num_items = -(-frames // 2**downsampling_layers)
        self.stem = Stem(1, channels, downsampling_layers=downsampling_layers)
        self.project = Linear(channels * -(-bands // 2**downsampling_layers), dim)
        # The first frame is centered on the first sample, and an item on its frames.
        middle = (torch.arange(num_items) + 0.5) * 2**downsampling_layers - 0.5
        centers = (middle * self.spectrum.hop / samples)[:, None]
        self.register_buffer("centers", centers, persistent=False)
        self.register_buffer("_positions", sinusoids(0, num_items, dim), persistent=False)
        self.dropout = Dropout(dropout)

    def shapes(self) -> tuple[Shape, Shape]:
        return ("batch", self.samples), (
            "batch",
            len(self.get_buffer("centers")),
            self.dim or "model",
        )

    def forward(self, source: Float[Tensor, "batch samples"]) -> Unpadded:
        bands = self.spectrum(source)
        if self.training and self.hidden:
            bands = hide_bands(bands, self.hidden)
        features = self.stem(bands[:, None])  # (batch, channels, bands, positions)
        items = self.project(features.flatten(1, 2).transpose(1, 2))
        return Unpadded.of(self.dropout(items + self._positions.to(items.dtype)))
