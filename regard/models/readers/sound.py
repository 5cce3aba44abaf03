"""Sound reader: log-mel spectrogram and convolutions, with one item for each time interval.

    S[t, f]   = |sum_n w_n x_{t hop + n} e^{-2 pi i f n / N}|^2     power, Hann window w of 25 ms
    M[t, b]   = log(sum_f mel_b(f) S[t, f] + c)                     triangles on the mel scale
    mel(f)    = 2595 log10(1 + f / 700)                             f in Hz
    x_i       = W [output of the convolutions at time i, all bands] + P_i

M is normalized to mean 0 and standard deviation 1 over each sound, so that it does not depend on
loudness. Where a mask hides M, it is 0, the mean.

Source: davis1980 (mel filters); stevens1937 (mel scale); convolutions before attention xiao2021;
masks park2019.
"""

import math
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.axes import widen
from regard.attention.masks import Unpadded
from regard.layers.convolutions import Stem
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.positions.sinusoidal import Sinusoidal
from regard.models.readers.reader import Reader, Shape
from regard.ops.constants import constant


def mel_filters(bands: int, bins: int, sample_rate: int) -> Float[Tensor, "bands bins"]:
    """Return triangular filters, evenly spaced on the mel scale from 0 to half the sample rate."""
    top = 2595 * math.log10(1 + sample_rate / 2 / 700)
    mels = torch.linspace(0, top, bands + 2, dtype=torch.float64, device="cpu")
    hertz = 700 * (10 ** (mels / 2595) - 1)
    frequency = torch.linspace(0, sample_rate / 2, bins, dtype=torch.float64, device="cpu")
    low, middle, high = hertz[:-2, None], hertz[1:-1, None], hertz[2:, None]
    rise, fall = (frequency - low) / (middle - low), (high - frequency) / (high - middle)
    return torch.minimum(rise, fall).clamp(min=0)


def hann_window(length: int) -> Float[Tensor, " length"]:
    """Return the periodic Hann window."""
    return torch.hann_window(length, dtype=torch.float64, device="cpu")


class LogMel(nn.Module):
    """Log-mel spectrogram (batch, bands, frames) of sound (batch, samples)."""

    def __init__(self, sample_rate: int, bands: int, *, hop: float = 0.01):
        super().__init__()
        self.hop, self.length = round(hop * sample_rate), round(0.025 * sample_rate)
        self.size = 1 << (self.length - 1).bit_length()
        self.filters = bands, self.size // 2 + 1, sample_rate

    def forward(self, sound: Float[Tensor, "batch samples"]) -> Float[Tensor, "batch bands frames"]:
        sound = widen(sound)
        window = constant(hann_window, self.length, device=sound.device, dtype=sound.dtype)
        filters = constant(mel_filters, *self.filters, device=sound.device, dtype=sound.dtype)
        with torch.autocast(sound.device.type, enabled=False):
            spectrum = torch.stft(
                sound,
                self.size,
                hop_length=self.hop,
                win_length=self.length,
                window=window,
                pad_mode="constant",
                return_complex=True,
            )[..., :-1]
            bands = torch.log(filters @ spectrum.abs().square() + 1e-6)
            mean = bands.mean((1, 2), keepdim=True)
            return (bands - mean) / (bands.std((1, 2), keepdim=True) + 1e-3)


@runtime_checkable
class MaskedSound(Protocol):
    """Sound (batch, samples); mask (batch, bands, frames): True = hidden."""

    samples: Float[Tensor, "batch samples"]
    mask: Bool[Tensor, "batch bands frames"]


class FrameReader(Reader):
    """Reader of sound (batch, samples), giving items (batch, positions, dim) of
    2^downsampling_layers frames each."""

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
    ):
        super().__init__()
        self.dim, self.samples = dim, samples
        self.spectrum = LogMel(sample_rate, bands, hop=hop)
        frames = samples // self.spectrum.hop
        self.frames_per_item = 2**downsampling_layers
        self.num_items = -(-frames // self.frames_per_item)
        self.stem = Stem(1, channels, downsampling_layers=downsampling_layers)
        self.project = Linear(channels * -(-bands // 2**downsampling_layers), dim)
        self.positions = Sinusoidal(dim)
        self.dropout = Dropout(dropout)

    @property
    def centers(self) -> Float[Tensor, "positions 1"]:
        """Center of each item as a share of the length."""
        # The first frame is centered on the first sample, and an item on its frames.
        items = torch.arange(self.num_items, dtype=torch.float64, device="cpu")
        middles = (items + 0.5) * self.frames_per_item - 0.5
        return (middles * self.spectrum.hop / self.samples)[:, None]

    def shapes(self) -> tuple[Shape, Shape]:
        return ("batch", self.samples), ("batch", self.num_items, self.dim or "model")

    def forward(self, source: Float[Tensor, "batch samples"] | MaskedSound) -> Unpadded:
        is_masked = not isinstance(source, Tensor)
        sound = source.samples if is_masked else source
        if tuple(sound.shape[1:]) != (self.samples,):
            sizes = f"(batch, {self.samples}), got {tuple(sound.shape)}"
            raise ValueError(f"sounds must be {sizes}")
        bands = self.spectrum(sound).to(next(self.parameters()).dtype)
        if is_masked:
            bands = bands.masked_fill(source.mask, 0.0)
        features = self.stem(bands[:, None])  # (batch, channels, bands, positions)
        items = self.project(features.flatten(1, 2).transpose(1, 2))
        return Unpadded.of(self.dropout(self.positions(items)))
