"""Autoencoders: an image through a narrow code and back, trained to be what it was.

    h = f(W_h y + b_h)        y~ = g(W_y h + b_y)        F(y) = C(y, y~) + R(h)

    C(y, y~) = |y - y~|^2        R(h) = sparsity |h|_1        denoising: the encoder sees y + noise
    under-complete: the code is smaller than the image, so it cannot simply be copied

f and g are networks: dense ones, or convolutions that halve the sides twice and double them again.

Source: lectures, F (autoencoders, energies); denoising vincent2008.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.features import widen
from regard.layers.linear import Linear
from regard.models.config import AutoencoderConfig
from regard.models.model import Loss


@runtime_checkable
class Pictures(Protocol):
    """What an autoencoder learns from: images within [0, 1]."""

    @property
    def source(self) -> Float[Tensor, "batch channels height width"]:
        """The images."""
        ...


class Autoencoder(nn.Module):
    """Images (batch, channels, height, width) to codes (batch, code) and back; dense or convolutional.

    `numbers` is the size of a code.
    """

    def __init__(self, config: AutoencoderConfig, shape: tuple[int, int, int]):
        super().__init__()
        self.noise, self.sparsity, self.shape = config.noise, config.sparsity, shape
        self.numbers = config.code
        channels, height, width = shape
        if config.kind == "dense":
            size = channels * height * width
            self.encoder = nn.Sequential(
                nn.Flatten(), Linear(size, config.hidden), nn.GELU(), Linear(config.hidden, config.code)
            )
            self.decoder = nn.Sequential(
                Linear(config.code, config.hidden), nn.GELU(), Linear(config.hidden, size), nn.Unflatten(1, shape)
            )
        else:
            if height % 4 or width % 4:
                raise ValueError(f"kind=convolutional halves the sides twice, but images are {height} x {width}")
            thin, small = config.channels, (2 * config.channels, height // 4, width // 4)
            inside = small[0] * small[1] * small[2]
            self.encoder = nn.Sequential(
                nn.Conv2d(channels, thin, 4, stride=2, padding=1),
                nn.GELU(),
                nn.Conv2d(thin, 2 * thin, 4, stride=2, padding=1),
                nn.GELU(),
                nn.Flatten(),
                Linear(inside, config.code),
            )
            self.decoder = nn.Sequential(
                Linear(config.code, inside),
                nn.GELU(),
                nn.Unflatten(1, small),
                nn.ConvTranspose2d(2 * thin, thin, 4, stride=2, padding=1),
                nn.GELU(),
                nn.ConvTranspose2d(thin, channels, 4, stride=2, padding=1),
            )

    def encode(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch code"]:
        """The code h of each image."""
        return self.encoder(images - 0.5)

    def decode(self, codes: Float[Tensor, "batch code"]) -> Float[Tensor, "batch channels height width"]:
        """The images y~ of codes."""
        return self.decoder(codes) + 0.5

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Tensor:
        """The images, through the code and back."""
        return self.decode(self.encode(images))

    def loss(self, batch: Pictures) -> Loss:
        """F(y) summed over the images; reported is C alone."""
        images = batch.source
        seen = images + self.noise * torch.randn_like(images) if self.training and self.noise else images
        codes = self.encode(seen)
        error = (widen(self.decode(codes)) - images).square().sum()
        total = error + self.sparsity * widen(codes).abs().sum() if self.sparsity else error
        return Loss(total, error.detach(), self.count(batch))

    def count(self, batch: Pictures) -> int:
        """Images of a batch."""
        return len(batch.source)

    def blocks(self) -> list[nn.Module]:
        """Parts that may be sharded each on its own."""
        return [self.encoder, self.decoder]
