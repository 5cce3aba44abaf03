"""Rotary positional encoding (RoPE): rotates queries and keys by angles of their positions.

    rotate(x)_i = R(i) x_i        R(i): pair j of x is rotated by the angle i base^(-2j/d), j < d/2
    <rotate(q)_i, rotate(k)_j> = <R(i - j) q_i, k_j>

So inner products depend on the distance of the positions only. Longer sequences than in training
are possible with smaller angles: all (linear), or only those of the pairs that turn slowly
(llama3).

Source: su2024; linear scaling chen2023; llama3 dubey2024.
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from regard.layers.forms import RotaryForm
from regard.layers.positions.base import PositionalEncoding, PositionSizes, Start, Vectors


@dataclass(frozen=True)
class LinearScaling:
    """All angles divided by `factor`: positions are interpolated. (chen2023)"""

    factor: float

    def __call__(self, rates: Float[Tensor, " pair"]) -> Float[Tensor, " pair"]:
        return rates / self.factor


@dataclass(frozen=True)
class Llama3Scaling:
    """Angles of slow pairs divided by `factor`, those of fast pairs kept. (dubey2024)

    turns = original_max_length rate / 2 pi
    kept  = clamp((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
    rate -> rate (kept + (1 - kept) / factor)
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_length: int = 8192

    def __post_init__(self) -> None:
        if self.low_freq_factor >= self.high_freq_factor:
            low, high = self.low_freq_factor, self.high_freq_factor
            raise ValueError(f"low_freq_factor must be below high_freq_factor={high}, got {low}")

    def __call__(self, rates: Float[Tensor, " pair"]) -> Float[Tensor, " pair"]:
        turns = self.original_max_length * rates / (2 * math.pi)
        width = self.high_freq_factor - self.low_freq_factor
        kept = ((turns - self.low_freq_factor) / width).clamp(0, 1)
        return rates * (kept + (1 - kept) / self.factor)


class Rotary(PositionalEncoding):
    """Rotary positional encoding of the first `dim` numbers of each head; the others are unchanged.

    base: the angle of pair j is base^(-2j/dim) per position. scaling: changes these angles.
    interleaved: pairs are numbers 2j and 2j + 1 (su2024, GPT-J), or j and j + dim/2 (Llama,
    GPT-NeoX), which is the same up to the order of the numbers.
    Nothing is learned or saved.
    """

    def __init__(
        self,
        dim: int,
        *,
        base: float = 10000.0,
        scaling: LinearScaling | Llama3Scaling | None = None,
        interleaved: bool = False,
    ):
        super().__init__()
        if dim < 2 or dim % 2:
            raise ValueError(f"dim of Rotary must be even and at least 2, got {dim}")
        if not 1 < base < math.inf:
            raise ValueError(f"base of Rotary must be above 1 and finite, got {base}")
        self.dim, self.base, self.scaling, self.interleaved = dim, base, scaling, interleaved
        rates = self.rates()
        if scaling is not None and not bool(((rates > 0) & rates.isfinite()).all()):
            raise ValueError(f"scaling must give angles above 0 and finite, got {scaling}")
        # Not a buffer: a change of the module's dtype must not round the angles.
        self._table: tuple[Tensor, Tensor, tuple[float, Any]] | None = None

    @classmethod
    def create(cls, config: Any, sizes: PositionSizes) -> Self:
        scaling = None
        if config.scaling == "linear":
            scaling = LinearScaling(config.factor)
        elif config.scaling == "llama3":
            factors = config.factor, config.low_freq_factor, config.high_freq_factor
            scaling = Llama3Scaling(*factors, config.original_max_length)
        dim = sizes.head_dim if config.dim is None else config.dim
        return cls(dim, base=config.base, scaling=scaling, interleaved=config.interleaved)

    def rates(self) -> Float[Tensor, " pair"]:
        """Return the angle of each pair per position, in float64 on the CPU."""
        exponents = torch.arange(0, self.dim, 2, dtype=torch.float64, device="cpu") / self.dim
        rates = self.base**-exponents
        return rates if self.scaling is None else self.scaling(rates)

    def rotate(self, vectors: Vectors, start: Start = 0) -> Vectors:
        size = vectors.shape[-1]
        if size < self.dim:
            raise ValueError(f"vectors must have at least dim={self.dim} numbers, got {size}")
        cos, sin = start if isinstance(start, tuple) else self.angles(vectors, start)
        rotated = vectors[..., : self.dim]
        if self.interleaved:
            first, second = rotated[..., 0::2], rotated[..., 1::2]
            parts = first * cos - second * sin, second * cos + first * sin
            rotated = torch.stack(parts, -1).flatten(-2)
        else:
            first, second = rotated.chunk(2, -1)
            rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        rotated = rotated.to(vectors.dtype)
        if vectors.shape[-1] == self.dim:
            return rotated
        return torch.cat((rotated, vectors[..., self.dim :]), -1)

    def matrix(self, length: int, start: int = 0) -> Float[Tensor, "length dim"]:
        angles = self._products(torch.arange(start, start + length))
        return self._round(torch.stack((angles.cos(), angles.sin()), -1).flatten(-2))

    def form(self) -> RotaryForm:
        return RotaryForm(self.rates(), self.interleaved)

    def extra_repr(self) -> str:
        scaling = "" if self.scaling is None else f", scaling={self.scaling}"
        order = ", interleaved=True" if self.interleaved else ""
        return f"{self.dim}, base={self.base}{scaling}{order}"

    def angles(self, vectors: Vectors, start: int | Tensor = 0) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (time, pair) of the angles, computed in float64."""
        count, device = vectors.shape[-2], vectors.device
        no_table = torch.compiler.is_exporting()  # a table in the graph would limit the length
        if no_table or isinstance(start, Tensor) or start < 0 or vectors.dtype == torch.float64:
            angles = self._products(torch.arange(count, device=device) + start)
            dtype = torch.promote_types(vectors.dtype, torch.float32)
            return angles.cos().to(dtype), angles.sin().to(dtype)
        end, table = start + count, self._table
        settings = self.base, self.scaling  # may be changed, as for longer contexts
        if (
            table is None
            or table[2] != settings
            or len(table[0]) < end
            or table[0].device != device
        ):
            with torch.inference_mode(mode=False), torch.no_grad():  # autograd saves the table
                angles = self._products(torch.arange(max(256, 2 * end), device=device))
                table = self._table = angles.cos().float(), angles.sin().float(), settings
        return table[0][start:end], table[1][start:end]

    def _products(self, positions: Tensor) -> Tensor:
        """Return the angles of positions (time, pair) in the widest dtype of the device."""
        dtype = torch.float32 if positions.device.type == "mps" else torch.float64
        return positions.to(dtype)[:, None] * self.rates().to(positions.device, dtype)
