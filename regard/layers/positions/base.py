"""Interface of positional encodings, since attention itself is invariant to the order of the items.

    x_i                                  ->  add(x)_i                         absolute encodings
    score(q_i, k_j)                      ->  score(rotate(q)_i, rotate(k)_j)  rotary encodings
    choice_j(score_ij)                   ->  choice_j(score_ij + bias_ij)     relative biases

An encoding has one of these effects, or several. `start` is the position of the first of the given
vectors.

Source: lectures, D.1, D.2.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.biases import Alibi, Bias, RelativeBias
from regard.attention.picture import Picture, draw_matrix
from regard.layers.forms import PositionsForm

Items = Float[Tensor, "batch time dim"]
Vectors = Float[Tensor, "... time dim"]
"""Queries or keys."""
Start = int | Tensor | tuple[Tensor, Tensor]
"""Position of the first of some vectors; or cosines and sines of their angles (Rotary.angles)."""


class PositionSizes(NamedTuple):
    """Sizes from which a core creates a positional encoding by its config."""

    width: int
    num_heads: int
    head_dim: int
    """Size of each head's queries and keys."""


class PositionalEncoding(nn.Module):
    """Base class of positional encodings; each method has no effect unless it is overridden."""

    _dtype = torch.float32
    """Dtype that `to` or `double` gave this module, which may have no weights to show it."""

    @classmethod
    def create(cls, config: Any, sizes: PositionSizes) -> Self:
        """Create the encoding of its config (regard.layers.positions.config) for these sizes."""
        return cls()

    def check(self, sizes: PositionSizes) -> None:
        """Raise ValueError if the encoding is of other sizes; by default it fits all."""

    @property
    def max_length(self) -> int | None:
        """Number of positions; None: no limit."""
        return None

    @property
    def adds(self) -> bool:
        """True if items are changed (`add` is overridden)."""
        return type(self).add is not PositionalEncoding.add

    @property
    def rotates(self) -> bool:
        """True if queries and keys are changed (`rotate`, or both others, are overridden)."""
        kind, base = type(self), PositionalEncoding
        return kind.rotate is not base.rotate or kind.rotate_query is not base.rotate_query

    def add(self, items: Items, start: int = 0) -> Items:
        """Return the items at positions start, start + 1, ... with their positions encoded."""
        return items

    def rotate(self, vectors: Vectors, start: Start = 0) -> Vectors:
        """Return queries or keys at positions start, start + 1, ... with their positions encoded.

        Only scores that are invariant to rotations allow it (`Score.is_rotation_invariant`).
        """
        return vectors

    def rotate_query(self, vectors: Vectors, start: Start = 0) -> Vectors:
        """Return queries at positions start, start + 1, ...; by default as `rotate` does."""
        return self.rotate(vectors, start)

    def rotate_keys(self, vectors: Vectors, start: Start = 0) -> Vectors:
        """Return keys at positions start, start + 1, ...; by default as `rotate` does."""
        return self.rotate(vectors, start)

    def bias(self, *, two_sided: bool) -> Bias | None:
        """Create the bias that all blocks of a stack share; two_sided: False in a decoder."""
        return None

    def matrix(self, length: int, start: int = 0) -> Float[Tensor, "length columns"]:
        """Return the matrix P of positions start .. start + length - 1, one row for each.

        Of an encoding that is added: the vectors that `add` adds. Of one that rotates: cosine and
        sine of the angle of each pair, alternating. Others have none: ValueError. In the dtype of
        the module; what is computed and not learned is at least float32.
        """
        raise ValueError(
            f"positions must add vectors or rotate, to have a matrix, got {type(self).__name__}"
        )

    def picture(self, length: int, *, start: int = 0, title: str | None = None) -> Picture:
        """Draw `matrix(length, start)`: rows: positions, columns: dimensions; `save` writes SVG.

        Raises: ValueError if there is no matrix, for a length below 1, or beyond the last position.
        """
        if length < 1:
            raise ValueError(f"length of a picture must be at least 1, got {length}")
        heading = f"{type(self).__name__}({self.extra_repr()})" if title is None else title
        matrix = self.matrix(length, start).detach().cpu()
        return draw_matrix(matrix, title=heading, names=("position", "dimension"), first=start)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        self._dtype = fn(torch.empty(0, dtype=self._dtype, device="cpu")).dtype
        return super()._apply(fn, recurse)

    def _round(self, matrix: Tensor) -> Tensor:
        """Return a matrix computed in float64 in the dtype of the module, at least float32."""
        return matrix.to(torch.promote_types(self._dtype, torch.float32))

    def form(self) -> PositionsForm | None:
        """Return the form of `add` or `rotate`; None if neither has an effect."""
        return None

    def forward(self, items: Items, start: int = 0) -> Items:
        """Return `add(items, start)`. Raises: ValueError if it changes the shape."""
        added = self.add(items, start)
        if added.shape != items.shape:
            sizes = f"{tuple(items.shape)}, got {tuple(added.shape)}"
            raise ValueError(f"{type(self).__name__}.add must keep the shape of items, {sizes}")
        return added


class LearnedVectors(PositionalEncoding):
    """Base class of encodings that add one learned vector for each position.

    Raises: ValueError if the items extend beyond the last position.
    """

    @abstractmethod
    def vectors(self) -> Float[Tensor, "positions dim"]:
        """Return the vectors of all positions, in order."""

    @property
    def max_length(self) -> int:
        return len(self.vectors())

    def add(self, items: Items, start: int = 0) -> Items:
        vectors, end = self.vectors(), start + items.shape[1]
        if end > len(vectors):
            raise ValueError(f"at most {len(vectors)} positions were learned, got {end}")
        return items + vectors[start:end]

    def matrix(self, length: int, start: int = 0) -> Float[Tensor, "length dim"]:
        vectors, end = self.vectors(), start + length
        if not 0 <= start <= end <= len(vectors):
            given = f"{start} .. {end - 1}"
            raise ValueError(f"positions must be between 0 and {len(vectors) - 1}, got {given}")
        return vectors[start:end]


def check_size(name: str, positions: PositionalEncoding, size: int, expected: int) -> None:
    """Raise ValueError if a size of the encoding is not the expected one."""
    if size != expected:
        kind = f"{type(positions).__name__} with {size}"
        raise ValueError(f"positions must have {name}={expected}, got {kind}")


class NoPositions(PositionalEncoding):
    """No positional encoding: for sets, and for items that encode their positions themselves."""


class AlibiPositions(PositionalEncoding):
    """ALiBi, a bias linear in the distance: `regard.attention.biases.Alibi`. (press2022)"""

    def __init__(self, num_heads: int):
        super().__init__()
        self.num_heads = num_heads

    @classmethod
    def create(cls, config: Any, sizes: PositionSizes) -> Self:
        return cls(sizes.num_heads)

    def check(self, sizes: PositionSizes) -> None:
        check_size("num_heads", self, self.num_heads, sizes.num_heads)

    def bias(self, *, two_sided: bool) -> Bias:
        return Alibi(self.num_heads)


class RelativePositions(PositionalEncoding):
    """T5's relative positions: `regard.attention.biases.RelativeBias`. (raffel2020)"""

    def __init__(self, num_heads: int, *, buckets: int = 32, max_distance: int = 128):
        super().__init__()
        self.num_heads, self.buckets, self.max_distance = num_heads, buckets, max_distance

    @classmethod
    def create(cls, config: Any, sizes: PositionSizes) -> Self:
        return cls(sizes.num_heads, buckets=config.buckets, max_distance=config.max_distance)

    def check(self, sizes: PositionSizes) -> None:
        check_size("num_heads", self, self.num_heads, sizes.num_heads)

    def bias(self, *, two_sided: bool) -> Bias:
        return RelativeBias(self.num_heads, self.buckets, self.max_distance, two_sided)
