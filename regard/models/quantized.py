"""A vector-quantized autoencoder: an image becomes a grid of numbers of codebook entries, and an image again.

    z = f(y)      k_p = argmin_k |z_p - e_k|      y~ = g(e_k)       F(y) = |y - y~|^2 + beta |z - sg(e_k)|^2

    backward   the gradient at e_k goes to z as it is (straight-through); sg stops it
    entries    n_k <- gamma n_k + (1 - gamma) #{p: k_p = k}      m_k <- gamma m_k + (1 - gamma) sum_{p: k_p = k} z_p
               e_k = m_k / n_k: the moving average of the vectors that chose it

f and g are convolutions that halve the sides so many times, and double them again. An entry that nearly nobody chooses
begins anew at a vector of the batch; at first all do. Which vectors is drawn from torch's generator.

Source: vandenoord2017, sections 3.1 and 3.2, appendix A.1; entries that begin anew: dhariwal2020, section 3.1.
"""

from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.features import widen
from regard.models.autoencoder import Pictures
from regard.models.config import AutoencoderConfig
from regard.models.model import Loss

_TINY = 1e-12
_DECAY, _LEAST = 0.97, 0.05
"""gamma, and the share of its part of the vectors below which an entry begins anew."""


class Quantized(NamedTuple):
    """Vectors replaced by entries."""

    entries: Float[Tensor, "*batch dim"]
    """The nearest entries; their gradient goes to the vectors."""
    codes: Int[Tensor, "*batch"]
    """Which ones they are."""
    distance: Float[Tensor, ""]
    """|z - sg(e)|^2 summed over all vectors."""


class Codebook(nn.Module):
    """`codes` entries of size `dim`, which follow the vectors that choose them while it trains.

    Buffers uses = n (codes,) and sums = m (codes, dim) are weights like others: saved, averaged, taken up again.
    """

    uses: Tensor
    sums: Tensor

    def __init__(self, codes: int, dim: int):
        super().__init__()
        self.register_buffer("uses", torch.zeros(codes))
        self.register_buffer("sums", torch.zeros(codes, dim))

    @property
    def entries(self) -> Float[Tensor, "codes dim"]:
        """All e_k."""
        return self.sums / self.uses.clamp(min=_TINY)[:, None]

    def nearest(self, vectors: Float[Tensor, "*batch dim"]) -> Int[Tensor, "*batch"]:
        """The code of the entry that is nearest to each vector; the lower one of equals."""
        entries = self.entries
        with torch.autocast(vectors.device.type, enabled=False):  # half precision would choose other entries
            distance = entries.square().sum(-1) - 2 * widen(vectors) @ entries.T
        return distance.argmin(-1)

    def forward(self, vectors: Float[Tensor, "*batch dim"]) -> Quantized:
        """The entries for some vectors; in training these also move the entries, for the next time."""
        wide = widen(vectors)
        known = wide.detach().flatten(0, -2)
        if self.training:
            self._revive(known)
        codes = self.nearest(wide.detach())
        entries = self.entries[codes]
        if self.training:
            self._follow(known, codes.flatten())
        distance = (wide - entries).square().sum()
        return Quantized(wide + (entries - wide).detach(), codes, distance)

    @torch.no_grad()
    def _revive(self, vectors: Tensor) -> None:
        """Entries that nearly nobody chose of late become vectors of this batch."""
        share = len(vectors) * _processes() / len(self.uses)
        drawn = torch.randint(len(vectors), (len(self.uses),), device=vectors.device)
        fresh = vectors[drawn] * share
        if _processes() > 1:
            dist.broadcast(fresh, src=0)
        unused = self.uses < _LEAST * share
        self.sums.copy_(torch.where(unused[:, None], fresh, self.sums))
        self.uses.copy_(torch.where(unused, share, self.uses))

    @torch.no_grad()
    def _follow(self, vectors: Tensor, codes: Tensor) -> None:
        """One step of the moving averages."""
        uses = torch.zeros_like(self.uses).index_add_(0, codes, torch.ones_like(vectors[:, 0]))
        sums = torch.zeros_like(self.sums).index_add_(0, codes, vectors)
        if _processes() > 1:
            dist.all_reduce(uses)
            dist.all_reduce(sums)
        self.uses.lerp_(uses, 1 - _DECAY)
        self.sums.lerp_(sums, 1 - _DECAY)


class QuantizedAutoencoder(nn.Module):
    """Images (batch, channels, height, width) to codes (batch, rows, columns) and back."""

    def __init__(self, config: AutoencoderConfig, shape: tuple[int, int, int]):
        super().__init__()
        self.noise, self.commitment, self.shape = config.noise, config.commitment, shape
        channels, height, width = shape
        into: list[nn.Module] = []
        back: list[nn.Module] = []
        before, after = channels, config.channels
        for number in range(config.halvings):
            # So that odd sides are halved upwards, and doubled to what they were.
            kernel = 4 - height % 2, 4 - width % 2
            height, width = -(-height // 2), -(-width // 2)
            into += [nn.Conv2d(before, after, kernel, stride=2, padding=1), nn.GELU()]
            back = [nn.ConvTranspose2d(after, before, kernel, stride=2, padding=1), nn.GELU(), *back]
            before, after = after, (2 if number == 0 else 1) * after
        self.grid = height, width
        self.encoder = nn.Sequential(*into, _Refined(before), _Refined(before), nn.Conv2d(before, config.code, 1))
        first = nn.Conv2d(config.code, before, 3, padding=1)
        self.decoder = nn.Sequential(first, _Refined(before), _Refined(before), nn.GELU(), *back[:-1])
        self.codebook = Codebook(config.codes, config.code)

    @property
    def numbers(self) -> int:
        """Codes of an image."""
        return self.grid[0] * self.grid[1]

    def vectors(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch row column dim"]:
        """z, a vector for each place of the grid."""
        return self.encoder(images - 0.5).movedim(1, -1)

    def encode(self, images: Float[Tensor, "batch channels height width"]) -> Int[Tensor, "batch row column"]:
        """The codes of images."""
        return self.codebook.nearest(self.vectors(images))

    def decode(self, codes: Int[Tensor, "batch row column"]) -> Float[Tensor, "batch channels height width"]:
        """The images y~ of codes."""
        return self._drawn(self.codebook.entries[codes])

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Tensor:
        """The images, through their codes and back."""
        return self.decode(self.encode(images))

    def loss(self, batch: Pictures) -> Loss:
        """F(y) summed over the images; reported is |y - y~|^2 alone."""
        images = batch.source
        seen = images + self.noise * torch.randn_like(images) if self.training and self.noise else images
        found = self.codebook(self.vectors(seen))
        error = (widen(self._drawn(found.entries)) - images).square().sum()
        return Loss(error + self.commitment * found.distance, error.detach(), self.count(batch))

    def count(self, batch: Pictures) -> int:
        """Images of a batch."""
        return len(batch.source)

    def blocks(self) -> list[nn.Module]:
        """Parts that may be sharded each on its own."""
        return [self.encoder, self.decoder]

    def _drawn(self, entries: Float[Tensor, "batch row column dim"]) -> Tensor:
        return self.decoder(entries.movedim(-1, 1)) + 0.5


class _Refined(nn.Module):
    """x + W2 gelu(W1 gelu(x)), W1 over 3 x 3 places."""

    def __init__(self, channels: int):
        super().__init__()
        self.inside = nn.Sequential(
            nn.GELU(), nn.Conv2d(channels, channels, 3, padding=1), nn.GELU(), nn.Conv2d(channels, channels, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inside(x)


def usage(codes: Int[Tensor, "..."], size: int) -> tuple[int, float]:
    """How many of `size` codes are in use, and the perplexity exp(-sum_k p_k log p_k) of how often each is."""
    shares = codes.flatten().bincount(minlength=size).double() / max(1, codes.numel())
    used = shares[shares > 0]
    return len(used), float(torch.exp(-(used * used.log()).sum()))


def _processes() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
