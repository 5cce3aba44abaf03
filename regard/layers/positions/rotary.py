"""Rotary positional encoding (RoPE): rotates queries and keys by angles of their positions.

    rotate(x)_i = R(i) x_i        R(i): pair j of x is rotated by the angle i base^(-2j/d), j < d/2
    <rotate(q)_i, rotate(k)_j> = <R(i - j) q_i, k_j>

So inner products depend on the distance of the positions only. Longer sequences than in training
are possible with smaller angles: all (linear), or only those of the pairs that turn slowly
(llama3, yarn).

The items of a grid have two positions, row and column: one half of the pairs is rotated by each, so
that inner products depend on the distances in both directions (GridRotary).

Source: su2024; linear scaling chen2023; llama3 dubey2024; yarn peng2024; grids heo2024, section 3.2
        (axial frequencies).
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from regard.layers.forms import RotaryForm
from regard.layers.positions.base import PositionalEncoding, PositionSizes, Start, Vectors
from regard.layers.positions.config import SCALINGS


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


@dataclass(frozen=True)
class YarnScaling:
    """Angles of slow pairs divided by `factor`, and larger scores. (peng2024, section 3.4)

    j(r) = (number of the pair that turns r times in original_max_length positions)
    kept = 1 - clamp((j - j(beta_fast)) / (j(beta_slow) - j(beta_fast)), 0, 1)
    rate -> rate (kept + (1 - kept) / factor)
    x    -> attention_factor x        rotated numbers; 0.1 ln(factor) + 1 if not given

    The ramp is linear in j, as in the released code, and j(r) is within the pairs of a head; with
    truncate, j(beta_fast) is rounded down and j(beta_slow) up.
    """

    factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_max_length: int = 8192
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        if self.beta_slow >= self.beta_fast:
            raise ValueError(
                f"beta_slow must be below beta_fast={self.beta_fast}, got {self.beta_slow}"
            )

    @property
    def amount(self) -> float:
        """The attention_factor."""
        given = self.attention_factor
        return 0.1 * math.log(self.factor) + 1 if given is None else given

    def __call__(self, rates: Float[Tensor, " pair"]) -> Float[Tensor, " pair"]:
        # In tensors: compiled and exported code has no condition on the rates.
        step = -rates[1].log() if len(rates) > 1 else rates.new_ones(())  # the first pair is kept
        turns = self.original_max_length / (2 * math.pi)  # of the first pair
        first, last = (math.log(turns / r) / step for r in (self.beta_fast, self.beta_slow))
        if self.truncate:
            first, last = first.floor(), last.ceil()
        first, last = first.clamp(min=0), last.clamp(max=2 * len(rates) - 1)
        numbers = torch.arange(len(rates), dtype=rates.dtype, device=rates.device)
        slow = ((numbers - first) / (last - first).clamp(min=1e-3)).clamp(0, 1)
        return rates * (1 - slow + slow / self.factor)


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
        scaling: LinearScaling | Llama3Scaling | YarnScaling | None = None,
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
        self._table: tuple[Tensor, Tensor, tuple[Any, ...]] | None = None

    @classmethod
    def create(cls, config: Any, sizes: PositionSizes) -> Self:
        scaling = None
        if config.scaling != "none":
            used = {name: getattr(config, name) for name in SCALINGS[config.scaling]}
            scaling = _SCALINGS[config.scaling](**used)
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
        pairs = self._turns(torch.arange(start, start + length))
        return self._round(torch.stack(pairs, -1).flatten(-2))

    def form(self) -> RotaryForm:
        return RotaryForm(self.rates(), self.interleaved, self._factor)

    def extra_repr(self) -> str:
        scaling = "" if self.scaling is None else f", scaling={self.scaling}"
        order = ", interleaved=True" if self.interleaved else ""
        return f"{self.dim}, base={self.base}{scaling}{order}"

    def angles(self, vectors: Vectors, start: int | Tensor = 0) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (time, pair) of the angles, computed in float64, times the
        attention_factor of the scaling."""
        count, device = vectors.shape[-2], vectors.device
        no_table = torch.compiler.is_compiling()  # a table in the graph would limit the length
        if no_table or isinstance(start, Tensor) or start < 0 or vectors.dtype == torch.float64:
            cos, sin = self._turns(torch.arange(count, device=device) + start)
            dtype = torch.promote_types(vectors.dtype, torch.float32)
            return cos.to(dtype), sin.to(dtype)
        end, table, settings = start + count, self._table, self._settings()
        if (
            table is None
            or table[2] != settings
            or len(table[0]) < end
            or table[0].device != device
        ):
            with torch.inference_mode(mode=False), torch.no_grad():  # autograd saves the table
                cos, sin = self._turns(torch.arange(max(256, 2 * end), device=device))
                table = self._table = cos.float(), sin.float(), settings
        return table[0][start:end], table[1][start:end]

    @property
    def _factor(self) -> float:
        return self.scaling.amount if isinstance(self.scaling, YarnScaling) else 1.0

    def _settings(self) -> tuple[Any, ...]:
        """Return the numbers of a table of angles; they may be changed, as for longer contexts."""
        return self.base, self.scaling

    def _turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (time, pair) of positions (time), times the factor."""
        angles, factor = self._products(positions), self._factor
        return angles.cos() * factor, angles.sin() * factor

    def _products(self, positions: Tensor) -> Tensor:
        """Return the angles of positions (time, pair) in the widest dtype of the device."""
        dtype = torch.float32 if positions.device.type == "mps" else torch.float64
        return positions.to(dtype)[:, None] * self.rates().to(positions.device, dtype)


class GridRotary(Rotary):
    """Rotary positional encoding of the items of a grid, row by row, by row and by column.

        angle of pair j     row base^(-4j/dim), j < dim/4;     column base^(-4j/dim) of the others

    grid:  (rows, columns), and `first`, the number of items before the grid, such as a class token,
           which are not rotated; the builder of a model sets both.
    Raises: ValueError in a model whose items are not those of a grid.
    """

    def __init__(self, dim: int, *, base: float = 100.0):
        if dim % 4:
            raise ValueError(f"dim of GridRotary must be divisible by 4, got {dim}")
        super().__init__(dim, base=base)
        self.grid: tuple[int, int] | None = None
        self.first = 0

    @classmethod
    def create(cls, config: Any, sizes: PositionSizes) -> Self:
        return cls(sizes.head_dim, base=config.base)

    def rates(self) -> Float[Tensor, " pair"]:
        exponents = torch.arange(0, self.dim, 4, dtype=torch.float64, device="cpu") / self.dim
        return self.base**-exponents

    def extra_repr(self) -> str:
        return f"{self.dim}, base={self.base}, grid={self.grid}"

    def _settings(self) -> tuple[Any, ...]:
        return self.base, self.grid, self.first

    def _products(self, positions: Tensor) -> Tensor:
        if self.grid is None:
            raise ValueError(
                "rotary-2d positions need items of a grid, such as patches of an image"
            )
        cells = (positions - self.first).clamp(min=0)
        by_row = super()._products(cells // self.grid[1])
        return torch.cat((by_row, super()._products(cells % self.grid[1])), -1)


_SCALINGS: dict[str, type] = {
    "linear": LinearScaling,
    "llama3": Llama3Scaling,
    "yarn": YarnScaling,
}
