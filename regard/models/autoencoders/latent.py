"""Latent-variable model: a vector y is reconstructed from an angle z, and a number x if given.

    y~ = g(cos z, sin z, x)             E(x, y, z) = C(y, y~)
    z* = argmin_z E(x, y, z)            F(x, y) = min_z E(x, y, z) = E(x, y, z*)
    training loss                       F(x, y) + smoothness |dy~/dz|^2 at a random z for each x

There is no encoder: z* is found among 48 angles (steps of pi / 24), then in three finer grids
around the best one. The gradient of F is that of E with z* held constant, as dE/dz = 0 there. The
period of the decoder g is 2 pi, so that the curve y~(z) of each x is closed. Without the second
term of the loss, angles that are no z* of the data are not trained, and there the curve may leave
the data.

Source: lectures, E.10 (trained manifold).
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.axes import widen
from regard.models.autoencoders.autoencoder import (
    AutoencoderBase,
    AutoencoderPart,
    cost_terms,
    dense_layers,
)
from regard.models.autoencoders.config import AutoencoderConfig
from regard.models.model import BatchLoss

STEPS = 48
"""Angles of the first search: pi / 24 apart."""
_ZOOMS, _POINTS = 3, 17
"""Finer searches around the best angle, and their angles; each is 8 times finer."""
_DELTA = 0.05
"""Half of the distance of the two angles of a finite difference, in radians."""


class LatentVariableModel(AutoencoderBase):
    """Latent-variable model of rows (batch, conditions + size): x, then y.

    decoder:    g, of (cos z, sin z, x), (batch, 2 + conditions), to y~, (batch, size).
    conditions: number of numbers x; 0 for a model of y alone.
    """

    def __init__(self, config: AutoencoderConfig, shape: tuple[int, ...], conditions: int = 0):
        super().__init__(config, shape)
        self.conditions, self.cost, self.smoothness = conditions, config.cost, config.smoothness
        self.numbers = 1
        hidden = [config.hidden or 512] * (config.layers - 1)
        layers = dense_layers([2 + conditions, *hidden, shape[0]])
        self.decoder = AutoencoderPart(*layers, activation=config.output_activation)

    @torch.no_grad()
    def encode(self, images: Float[Tensor, "batch numbers"]) -> Float[Tensor, "batch 1"]:
        """Return z* of each row, in [0, 2 pi]."""
        width = 2 * math.pi / STEPS
        z = width * torch.arange(STEPS).to(images)
        best = self._best(z.expand(len(images), STEPS), images)
        offsets = torch.linspace(-width, width, _POINTS).to(images)
        for zoom in range(_ZOOMS):
            best = self._best(best + offsets * (2 / (_POINTS - 1)) ** zoom, images)
        return best % (2 * math.pi)

    def decode(self, codes: Float[Tensor, "batch 1"], x: Tensor | None = None) -> Tensor:
        """Return y~ (batch, size) of each angle, given x (batch, conditions)."""
        return self.decoder(self._inputs(codes, x))

    def reconstruct(self, codes: Tensor, images: Tensor) -> Tensor:
        return self.decode(codes, images[:, : self.conditions])

    def energy(self, images: Float[Tensor, "batch numbers"]) -> Float[Tensor, " batch"]:
        """Return F(x, y) of each row; in evaluation their sum is the loss."""
        return self._energy(self.encode(images), images)

    def loss(self, batch: Any) -> BatchLoss:
        """Return F(x, y) summed over the rows `batch.source`, in training with the smoothness."""
        images = batch.source
        total = error = self.energy(images).sum()
        if self.training and self.smoothness:
            z = 2 * math.pi * torch.rand_like(images[:, :1])
            after, before = (self.reconstruct(z + way * _DELTA, images) for way in (1, -1))
            slopes = (widen(after) - widen(before)) / (2 * _DELTA)
            total = error + self.smoothness * slopes.square().sum()
        return BatchLoss(total, error.detach(), self.count(batch))

    def blocks(self) -> list[nn.Module]:
        return [] if self.cost == "cross-entropy" else [self.decoder]

    def _inputs(self, codes: Tensor, x: Tensor | None) -> Tensor:
        parts = [codes.cos(), codes.sin()]
        return torch.cat(parts if x is None else [*parts, x], 1)

    def _energy(self, codes: Tensor, images: Tensor) -> Float[Tensor, " batch"]:
        """Return E(x, y, z) of each row and its angle (batch, 1)."""
        x, y = images[:, : self.conditions], images[:, self.conditions :]
        return cost_terms(self.cost, self.decoder, self._inputs(codes, x), y).sum(1)

    def _best(self, angles: Tensor, images: Tensor) -> Float[Tensor, "batch 1"]:
        """Return the angle of lowest energy among those of each row, (batch, angles)."""
        count = angles.shape[1]
        energies = self._energy(angles.reshape(-1, 1), images.repeat_interleave(count, 0))
        return angles.gather(1, energies.view(-1, count).argmin(1, keepdim=True))
