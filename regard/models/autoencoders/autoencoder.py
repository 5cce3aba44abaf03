"""Autoencoders: an image or a vector is encoded to a small code and reconstructed from it.

    h = f(W_h y + b_h)        y~ = g(W_y h + b_y)        F(y) = C(y, y~) + R(h)

    under-complete: the code is smaller than y, so that it cannot be copied
    denoising:      the encoder sees y + noise in training

With `layers=1` these are the equations of the model. Otherwise W_h and W_y stand for dense networks
with hidden layers, or for two convolutions with stride 2 and two transposed ones back; of images,
whose pixels are in [0, 1], they read y - 1/2 and add 1/2 to y~ if g is the identity. The config
chooses f, g, C and R; C and R are in `energy.py`.

Source: lectures, E.8, E.9 (autoencoders, energies); denoising vincent2008.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.axes import widen
from regard.layers.linear import Linear
from regard.models.autoencoders.config import AutoencoderConfig, KLConfig, NoRegularizerConfig
from regard.models.autoencoders.energy import ACTIVATIONS, contraction, mean_activation_divergence
from regard.models.model import BatchLoss


class AutoencoderPart(nn.Sequential):
    """Encoder or decoder of an autoencoder: f(layers(x + input_shift)) + output_shift.

    activation: f, a name in ACTIVATIONS.
    """

    def __init__(
        self,
        *layers: nn.Module,
        activation: str = "identity",
        input_shift: float = 0.0,
        output_shift: float = 0.0,
    ):
        super().__init__(*layers)
        self.activation, self.input_shift, self.output_shift = activation, input_shift, output_shift

    def preactivation(self, x: Tensor) -> Tensor:
        """Return layers(x + input_shift), the argument of f."""
        return super().forward(x + self.input_shift if self.input_shift else x)

    def forward(self, input: Tensor) -> Tensor:
        output = ACTIVATIONS[self.activation](self.preactivation(input))
        return output + self.output_shift if self.output_shift else output


class AutoencoderBase(nn.Module):
    """Base class of autoencoders.

    shape: of one image, (channels, height, width), or vector, (size,).
    """

    encoder: AutoencoderPart
    decoder: AutoencoderPart
    numbers: int
    """Number of numbers, or indices, of a code."""
    conditions: int = 0
    """Number of numbers x before y in each row, on which the reconstruction y~ depends."""

    def __init__(self, config: AutoencoderConfig, shape: tuple[int, ...]):
        super().__init__()
        self.noise, self.shape, self.whole_batch = config.noise, shape, config.whole_batch

    def encode(self, images: Float[Tensor, "batch *shape"]) -> Tensor:
        """Return the code of each image or vector."""
        return self.encoder(images)

    def decode(self, codes: Tensor) -> Float[Tensor, "batch *shape"]:
        """Return the reconstruction y~ of each code."""
        return self.decoder(codes)

    def reconstruct(self, codes: Tensor, images: Tensor) -> Tensor:
        """Return the reconstruction of each code, which may depend on x in the rows `images`."""
        return self.decode(codes)

    def forward(self, images: Float[Tensor, "batch *shape"]) -> Tensor:
        return self.reconstruct(self.encode(images), images)

    def count(self, batch: Any) -> int:
        return len(batch.source)

    def blocks(self) -> list[nn.Module]:
        return [self.encoder, self.decoder]

    def add_noise(self, images: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """Return the input of the encoder: images, in training with noise."""
        if self.training and self.noise:
            return images + self.noise * torch.randn_like(images)
        return images


class Autoencoder(AutoencoderBase):
    """Autoencoder of images (batch, channels, height, width), or of vectors (batch, size).

    encoder: h = encoder(y), codes (batch, code).
    decoder: y~ = decoder(h), reconstructions in the shape of y.
    Raises:  ValueError for sides that are not multiples of 4 with convolutions.
    """

    def __init__(self, config: AutoencoderConfig, shape: tuple[int, ...]):
        super().__init__(config, shape)
        self.cost, self.regularizer = config.cost, config.regularizer
        self.numbers = config.code_size
        if config.kind == "dense":
            hidden = [config.hidden or 512] * (config.layers - 1)
            sizes = [math.prod(shape), *hidden, config.code_size]
            into = [nn.Flatten(), *dense_layers(sizes)]
            back = [*dense_layers(sizes[::-1]), nn.Unflatten(1, shape)]
        else:
            into, back = _convolutions(config, shape)
        is_formula = config.kind == "dense" and config.layers == 1
        is_centered = len(shape) == 3 and not is_formula and config.output_activation == "identity"
        center = 0.5 if is_centered else 0.0
        self.encoder = AutoencoderPart(*into, activation=config.f, input_shift=-center)
        g = config.output_activation
        self.decoder = AutoencoderPart(*back, activation=g, output_shift=center)

    def energy(self, images: Float[Tensor, "batch *shape"]) -> Float[Tensor, " batch"]:
        """Return F(y) of each input, without noise; in evaluation their sum is the loss.

        Raises: ValueError with regularizer kl, which compares means over a batch.
        """
        if self.regularizer.name == "kl":
            raise ValueError("regularizer kl, a mean over a batch, has no energy of one input")
        codes = self.encode(images)
        cost = self._cost(images, codes).flatten(1).sum(1)
        if isinstance(self.regularizer, NoRegularizerConfig):
            return cost
        return cost + self.regularizer.weight * self._regularizer(images, codes).sum(1)

    def loss(self, batch: Any) -> BatchLoss:
        """Return F(y) summed over batch.source; R of kl is that of the batch per row; `nll` is C.

        source: images (batch, channels, height, width) in [0, 1], or vectors (batch, size).
        """
        images, regularizer = batch.source, self.regularizer
        noisy = self.add_noise(images)
        if isinstance(regularizer, KLConfig):
            a = self.encoder.preactivation(noisy)
            codes = a.sigmoid()
            terms = len(a) * mean_activation_divergence(widen(a), regularizer.target)
        else:
            codes = self.encode(noisy)
            terms = self._regularizer(noisy, codes)
        total = error = self._cost(images, codes).sum()
        if not isinstance(regularizer, NoRegularizerConfig):
            total = error + regularizer.weight * terms.sum()
        return BatchLoss(total, error.detach(), self.count(batch))

    def blocks(self) -> list[nn.Module]:
        # Costs and regularizers on preactivations use the layers apart from their forward.
        if self.cost == "cross-entropy" or self.regularizer.name in ("contractive", "kl"):
            return []
        return super().blocks()

    def _cost(self, images: Tensor, codes: Tensor) -> Float[Tensor, "batch *shape"]:
        return cost_terms(self.cost, self.decoder, codes, images)

    def _regularizer(self, images: Tensor, codes: Tensor) -> Float[Tensor, "batch code"]:
        """Return the terms of R of each row, without its weight; nothing to compute for none."""
        match self.regularizer.name:
            case "l1":
                return widen(codes).abs()
            case "l2":
                return widen(codes).square()
            case "contractive":
                layers = [layer for layer in self.encoder if isinstance(layer, Linear)]
                with torch.autocast(images.device.type, enabled=False):
                    inputs = images.flatten(1) + self.encoder.input_shift
                    return contraction(layers, self.encoder.activation, inputs)
        return codes


def cost_terms(cost: str, decoder: AutoencoderPart, codes: Tensor, images: Tensor) -> Tensor:
    """Return the terms of C(y, y~), y~ = decoder(codes), for y = images of the same shape."""
    if cost == "cross-entropy":
        logits = widen(decoder.preactivation(codes))
        return functional.binary_cross_entropy_with_logits(logits, images, reduction="none")
    error = widen(decoder(codes)) - images
    return error.square() if cost == "squared" else error.abs()


def dense_layers(sizes: Sequence[int]) -> list[nn.Module]:
    """Return linear layers between these sizes, with GELU between two."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [Linear(before, after), nn.GELU()]
    return layers[:-1]


def _convolutions(
    config: AutoencoderConfig, shape: tuple[int, ...]
) -> tuple[list[nn.Module], list[nn.Module]]:
    channels, height, width = shape
    if height % 4 or width % 4:
        raise ValueError(f"sides must be multiples of 4 with convolutions, got {height} x {width}")
    outer, inner_shape = config.channels, (2 * config.channels, height // 4, width // 4)
    size = math.prod(inner_shape)
    into: list[nn.Module] = [
        nn.Conv2d(channels, outer, 4, stride=2, padding=1),
        nn.GELU(),
        nn.Conv2d(outer, 2 * outer, 4, stride=2, padding=1),
        nn.GELU(),
        nn.Flatten(),
        Linear(size, config.code_size),
    ]
    back: list[nn.Module] = [
        Linear(config.code_size, size),
        nn.GELU(),
        nn.Unflatten(1, inner_shape),
        nn.ConvTranspose2d(2 * outer, outer, 4, stride=2, padding=1),
        nn.GELU(),
        nn.ConvTranspose2d(outer, channels, 4, stride=2, padding=1),
    ]
    return into, back
