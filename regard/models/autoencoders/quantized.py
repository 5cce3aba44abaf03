"""Vector-quantized autoencoder (VQ-VAE): an image is encoded to a grid of codebook indices.

    z = f(y)      k_p = argmin_k |z_p - e_k|      y~ = g(e_k)
    F(y) = |y - y~|^2 + beta |z - sg(e_k)|^2

    backward   the gradient of e_k is copied to z (straight-through); sg: stop gradient
    entries    n_k <- gamma n_k + (1 - gamma) #{p: k_p = k}
               m_k <- gamma m_k + (1 - gamma) sum_{p: k_p = k} z_p
               e_k = m_k / n_k: moving average of the vectors assigned to it

f and g are `downsampling_layers` convolutions with stride 2, and transposed ones back. An entry to
which almost no vectors are assigned (initially all) is reset to a random vector of the batch.

Source: vandenoord2017, sections 3.1 and 3.2, appendix A.1; reset of entries: dhariwal2020, section
        3.1.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.axes import widen
from regard.models.autoencoders.autoencoder import AutoencoderBase, AutoencoderPart
from regard.models.autoencoders.config import AutoencoderConfig
from regard.models.model import BatchLoss

_TINY = 1e-12
_DECAY, _LEAST = 0.97, 0.05
"""gamma, and the share of the mean usage below which an entry is reset."""


class CodebookOutput(NamedTuple):
    """Result of quantizing vectors."""

    entries: Float[Tensor, "*batch dim"]
    """Nearest entries; their gradient is copied to the vectors."""
    codes: Int[Tensor, "*batch"]
    distance: Float[Tensor, ""]
    """|z - sg(e)|^2 summed over all vectors."""


class Codebook(nn.Module):
    """Codebook of `codes` entries of size `dim`, updated by moving averages in training.

    The buffers cluster_sizes = n (codes,) and cluster_sums = m (codes, dim) are part of
    checkpoints.
    """

    cluster_sizes: Tensor
    cluster_sums: Tensor

    def __init__(self, codes: int, dim: int):
        super().__init__()
        self.register_buffer("cluster_sizes", torch.zeros(codes))
        self.register_buffer("cluster_sums", torch.zeros(codes, dim))

    @property
    def entries(self) -> Float[Tensor, "codes dim"]:
        return self.cluster_sums / self.cluster_sizes.clamp(min=_TINY)[:, None]

    def nearest(self, vectors: Float[Tensor, "*batch dim"]) -> Int[Tensor, "*batch"]:
        """Return the index of the nearest entry of each vector; the lowest index on ties."""
        entries = self.entries
        # Half precision would select other entries.
        with torch.autocast(vectors.device.type, enabled=False):
            distance = entries.square().sum(-1) - 2 * widen(vectors) @ entries.T
        return distance.argmin(-1)

    def forward(self, vectors: Float[Tensor, "*batch dim"]) -> CodebookOutput:
        """Quantize vectors; in training, also update the entries for the next call."""
        wide = widen(vectors)
        known = wide.detach().flatten(0, -2)
        if self.training:
            self._reset_unused(known)
        codes = self.nearest(wide.detach())
        entries = self.entries[codes]
        if self.training:
            self._update_averages(known, codes.flatten())
        distance = (wide - entries).square().sum()
        return CodebookOutput(wide + (entries - wide).detach(), codes, distance)

    def usage(self, codes: Int[Tensor, "..."]) -> dict[str, float]:
        """Return the number of codes in use, and the perplexity exp(-sum_k p_k log p_k)."""
        size = len(self.cluster_sizes)
        shares = codes.flatten().bincount(minlength=size).double() / max(1, codes.numel())
        used = shares[shares > 0]
        perplexity = float(torch.exp(-(used * used.log()).sum()))
        return {"codes_used": len(used), "code_perplexity": perplexity}

    @torch.no_grad()
    def _reset_unused(self, vectors: Tensor) -> None:
        share = len(vectors) / len(self.cluster_sizes)
        index = torch.randint(len(vectors), (len(self.cluster_sizes),), device=vectors.device)
        fresh = vectors[index] * share
        unused = self.cluster_sizes < _LEAST * share
        self.cluster_sums.copy_(torch.where(unused[:, None], fresh, self.cluster_sums))
        self.cluster_sizes.copy_(torch.where(unused, share, self.cluster_sizes))

    @torch.no_grad()
    def _update_averages(self, vectors: Tensor, codes: Tensor) -> None:
        ones = torch.ones_like(vectors[:, 0])
        uses = torch.zeros_like(self.cluster_sizes).index_add_(0, codes, ones)
        sums = torch.zeros_like(self.cluster_sums).index_add_(0, codes, vectors)
        self.cluster_sizes.lerp_(uses, 1 - _DECAY)
        self.cluster_sums.lerp_(sums, 1 - _DECAY)


Images = Float[Tensor, "batch channels height width"]
Codes = Int[Tensor, "batch row column"]


class QuantizedAutoencoder(AutoencoderBase):
    """Autoencoder of images (batch, channels, height, width) with codes (batch, rows, columns).

    encoder: z = encoder(y), vectors (batch, dim, rows, columns), which the codebook replaces by its
             entries e_k.
    decoder: y~ = decoder(e_k), reconstructions in the shape of y.
    Raises:  ValueError for vectors of numbers, which have no grid.
    """

    shape: tuple[int, int, int]

    def __init__(self, config: AutoencoderConfig, shape: tuple[int, ...]):
        super().__init__(config, shape)
        self.commitment = config.commitment
        channels, height, width = self.shape
        into: list[nn.Module] = []
        back: list[nn.Module] = []
        before, after = channels, config.channels
        for number in range(config.downsampling_layers):
            # These kernels round odd sides up, and restore them when doubling.
            kernel = 4 - height % 2, 4 - width % 2
            height, width = -(-height // 2), -(-width // 2)
            into += [nn.Conv2d(before, after, kernel, stride=2, padding=1), nn.GELU()]
            up = nn.ConvTranspose2d(after, before, kernel, stride=2, padding=1)
            back = [up, nn.GELU(), *back]
            before, after = after, (2 if number == 0 else 1) * after
        self.grid, self.numbers = (height, width), height * width
        residual = _ResidualBlock(before), _ResidualBlock(before)
        narrow = nn.Conv2d(before, config.code_size, 1)
        self.encoder = AutoencoderPart(*into, *residual, narrow, input_shift=-0.5)
        first = nn.Conv2d(config.code_size, before, 3, padding=1)
        residual = _ResidualBlock(before), _ResidualBlock(before)
        self.decoder = AutoencoderPart(first, *residual, nn.GELU(), *back[:-1], output_shift=0.5)
        self.codebook = Codebook(config.codebook_size, config.code_size)

    def vectors(self, images: Images) -> Float[Tensor, "batch row column dim"]:
        """Return z, one vector for each cell of the grid."""
        return self.encoder(images).movedim(1, -1)

    def encode(self, images: Images) -> Codes:
        return self.codebook.nearest(self.vectors(images))

    def decode(self, codes: Codes) -> Images:
        return self._decode_entries(self.codebook.entries[codes])

    def energy(self, images: Images) -> Float[Tensor, " batch"]:
        """Return F(y) of each image, without noise; in evaluation their sum is the loss."""
        vectors = widen(self.vectors(images))
        entries = self.codebook.entries[self.codebook.nearest(vectors.detach())]
        cost = (widen(self._decode_entries(entries)) - images).square().flatten(1).sum(1)
        return cost + self.commitment * (vectors - entries).square().flatten(1).sum(1)

    def loss(self, batch: Any) -> BatchLoss:
        """Return F(y) summed over the images `batch.source`; `nll` is |y - y~|^2 alone."""
        images = batch.source
        quantized = self.codebook(self.vectors(self.add_noise(images)))
        error = (widen(self._decode_entries(quantized.entries)) - images).square().sum()
        total = error + self.commitment * quantized.distance
        return BatchLoss(total, error.detach(), self.count(batch))

    def _decode_entries(self, entries: Float[Tensor, "batch row column dim"]) -> Tensor:
        return self.decoder(entries.movedim(-1, 1))


class _ResidualBlock(nn.Module):
    """Residual block x + W2 gelu(W1 gelu(x)), where W1 is a 3 x 3 and W2 a 1 x 1 convolution."""

    def __init__(self, channels: int):
        super().__init__()
        wide = nn.Conv2d(channels, channels, 3, padding=1)
        narrow = nn.Conv2d(channels, channels, 1)
        self.layers = nn.Sequential(nn.GELU(), wide, nn.GELU(), narrow)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)
