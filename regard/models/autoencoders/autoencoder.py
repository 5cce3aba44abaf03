"""Autoencoders: an image is encoded to a narrow code and reconstructed from it.

    h = f(W_h y + b_h)        y~ = g(W_y h + b_y)        F(y) = C(y, y~) + R(h)

    C(y, y~) = |y - y~|^2        R(h) = sparsity |h|_1        denoising: the encoder sees y + noise
    under-complete: the code is smaller than the image, so that it cannot be copied

f and g are dense networks, or convolutions that halve the height and width twice and double them again.

Source: lectures, E.8, E.9 (autoencoders, energies); denoising vincent2008.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.axes import widen
from regard.layers.linear import Linear
from regard.models.config import AutoencoderConfig
from regard.models.model import BatchLoss


@runtime_checkable
class ReconstructionBatch(Protocol):
    """Training batch of an autoencoder: images with pixels in [0, 1]."""

    @property
    def source(self) -> Float[Tensor, "batch channels height width"]:
        """The images."""
        ...


class Autoencoder(nn.Module):
    """Dense or convolutional autoencoder of images (batch, channels, height, width) with codes (batch, code).

    numbers: size of a code.
    """

    def __init__(self, config: AutoencoderConfig, shape: tuple[int, int, int]):
        super().__init__()
        self.noise, self.sparsity, self.shape = config.noise, config.sparsity, shape
        self.numbers = config.code_dim
        channels, height, width = shape
        if config.kind == "dense":
            size = channels * height * width
            self.encoder = nn.Sequential(
                nn.Flatten(), Linear(size, config.hidden), nn.GELU(), Linear(config.hidden, config.code_dim)
            )
            self.decoder = nn.Sequential(
                Linear(config.code_dim, config.hidden), nn.GELU(), Linear(config.hidden, size), nn.Unflatten(1, shape)
            )
        else:
            if height % 4 or width % 4:
                raise ValueError(
                    f"sides of the images must be multiples of 4 with kind=convolutional, got {height} x {width}"
                )
            outer, inner_shape = config.channels, (2 * config.channels, height // 4, width // 4)
            size = inner_shape[0] * inner_shape[1] * inner_shape[2]
            self.encoder = nn.Sequential(
                nn.Conv2d(channels, outer, 4, stride=2, padding=1),
                nn.GELU(),
                nn.Conv2d(outer, 2 * outer, 4, stride=2, padding=1),
                nn.GELU(),
                nn.Flatten(),
                Linear(size, config.code_dim),
            )
            self.decoder = nn.Sequential(
                Linear(config.code_dim, size),
                nn.GELU(),
                nn.Unflatten(1, inner_shape),
                nn.ConvTranspose2d(2 * outer, outer, 4, stride=2, padding=1),
                nn.GELU(),
                nn.ConvTranspose2d(outer, channels, 4, stride=2, padding=1),
            )

    def encode(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch code"]:
        """Return the code h of each image."""
        return self.encoder(images - 0.5)

    def decode(self, codes: Float[Tensor, "batch code"]) -> Float[Tensor, "batch channels height width"]:
        """Return the reconstruction y~ of each code."""
        return self.decoder(codes) + 0.5

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Tensor:
        """Return the reconstructions of images."""
        return self.decode(self.encode(images))

    def loss(self, batch: ReconstructionBatch) -> BatchLoss:
        """Return F(y) summed over the images; `nll` is C alone."""
        images = batch.source
        noisy = images + self.noise * torch.randn_like(images) if self.training and self.noise else images
        codes = self.encode(noisy)
        error = (widen(self.decode(codes)) - images).square().sum()
        total = error + self.sparsity * widen(codes).abs().sum() if self.sparsity else error
        return BatchLoss(total, error.detach(), self.count(batch))

    def count(self, batch: ReconstructionBatch) -> int:
        """Return the number of images of a batch."""
        return len(batch.source)

    def blocks(self) -> list[nn.Module]:
        """Return the modules that may be sharded one by one (FSDP)."""
        return [self.encoder, self.decoder]
