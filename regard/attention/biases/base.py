"""Attention biases: numbers that are added to the scores before the softmax (or another choice).

    weight_ij = choice_j(score_ij + bias_ij)

A bias is a function of positions (ALiBi, T5), of positions, queries and keys (Shaw), or a tensor.
-inf hides its pair as a mask would. Leading axes are aligned from the left, as those of masks are.
"""

from abc import ABC, abstractmethod
from itertools import chain
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.axes import Keys, Queries, align_pair, check_broadcasts, check_strided
from regard.attention.picture import (
    Picture,
    Pictured,
    draw_tensor,
    shown_sizes,
    shown_sizes_of_both,
)
from regard.attention.positions import Positions

Diagonals = Float[Tensor, "... diagonal"] | None


class Bias(Pictured, nn.Module, ABC):
    """Base class of attention biases, added to the scores; `+` adds biases and tensors."""

    @abstractmethod
    def materialize(self, query: Queries, keys: Keys, positions: Positions) -> Float[Tensor, "..."]:
        """Return a tensor that broadcasts to (leading axes ..., queries, keys).

        query: those at these positions, as passed to the read, before any score mapped them.
        keys:  all keys, as the memory holds them: mapped by the score of the read, or what
               `MultiHead.pairs` makes keys and values of; repeated for grouped heads.
        """

    def forward(self, query: Queries, keys: Keys, positions: Positions) -> Float[Tensor, "..."]:
        return self.materialize(query, keys, positions)

    def diagonals(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Diagonals:
        """Return one number per diagonal if the bias is constant along diagonals, else None.

        Entry j - i + m - 1 of the last axis is the bias of query i of m and key j of n. Positions
        other than the default ones, and tiles, give None.
        """
        return None

    def picture(
        self,
        num_queries: int,
        num_keys: int,
        *,
        query: Tensor | None = None,
        keys: Tensor | None = None,
        title: str | None = None,
    ) -> Picture:
        """Draw the bias: queries down, keys across; -inf is hatched.

        query, keys: (..., query, dim) and (..., key, dim), for a bias that depends on them; by
                     default zeros of size 1.
        """
        if query is None:
            state = next(chain(self.parameters(), self.buffers()), torch.empty(0))
            query = torch.zeros(num_queries, 1, device=state.device)
        keys = torch.zeros(num_keys, 1, device=query.device) if keys is None else keys
        positions = Positions(num_queries, num_keys, query.device)
        tensor = self.materialize(query, keys, positions.tile(0, num_queries))
        title = _one_line(self) if title is None else title
        return draw_tensor(tensor, positions, title=title, is_mask=False)

    def __add__(self, other: "Bias | Tensor") -> "Bias":
        return SumOfBiases(self, other if isinstance(other, Bias) else TensorBias(other))

    def __radd__(self, other: Tensor) -> "Bias":
        return SumOfBiases(TensorBias(other), self)


class DistanceBias(Bias):
    """Base class of biases of the distance j - p (and the head): one number per diagonal."""

    @abstractmethod
    def at(self, distance: Int[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
        """Return the bias ([head,] ...) at these distances, those of key minus query position."""

    def materialize(self, query: Queries, keys: Keys, positions: Positions) -> Float[Tensor, "..."]:
        rows, num_keys = positions.num_rows, positions.num_keys
        # `unfold` fixes the number of keys in an exported program.
        is_fixed = positions.key_positions is None and not torch.compiler.is_exporting()
        if not is_fixed or rows == 0 or num_keys == 0:
            return self.at(positions.key - positions.query, query.dtype).unsqueeze(0)
        # One number per diagonal: gradients are summed along diagonals before the table.
        diagonals = self.at(_distances(rows, num_keys, positions), query.dtype)
        return diagonals.unfold(-1, num_keys, 1).flip(-2).unsqueeze(0)

    def diagonals(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Diagonals:
        queries, keys = positions.num_queries, positions.num_keys
        is_whole = positions.is_aligned and positions.rows is None
        if not is_whole or queries == 0 or keys == 0:
            return None
        return self.at(_distances(queries, keys, positions), dtype).unsqueeze(0)


@final
class TensorBias(Bias):
    """Bias from a floating-point tensor (..., query, key); axes of size 1 broadcast."""

    def __init__(self, tensor: Float[Tensor, "..."]):
        super().__init__()
        if not isinstance(tensor, Tensor):
            raise TypeError(f"bias must be a Bias or a tensor, got {type(tensor).__name__}")
        check_strided("bias", tensor)
        if not tensor.is_floating_point():
            raise TypeError(f"bias must be floating point, got {tensor.dtype}; a mask is boolean")
        if tensor.dim() < 2:
            raise ValueError(f"bias must be (..., query, key), got shape {tuple(tensor.shape)}")
        self.tensor = tensor

    def materialize(self, query: Queries, keys: Keys, positions: Positions) -> Float[Tensor, "..."]:
        check_broadcasts("bias", self.tensor, positions)
        return positions.rows_of(self.tensor)

    def _shown_sizes(self) -> tuple[int, int]:
        return shown_sizes(self.tensor)

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.tensor.shape))


@final
class SumOfBiases(Bias):
    """Sum of two biases: bias = left + right."""

    def __init__(self, left: Bias, right: Bias):
        super().__init__()
        self.left, self.right = left, right

    def materialize(self, query: Queries, keys: Keys, positions: Positions) -> Float[Tensor, "..."]:
        left, right = self.left(query, keys, positions), self.right(query, keys, positions)
        return torch.add(*align_pair(left, right))

    def diagonals(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Diagonals:
        left, right = self.left.diagonals(positions, dtype), self.right.diagonals(positions, dtype)
        if left is None or right is None:
            return None
        # A query axis is added because leading axes are aligned before the last two.
        return torch.add(*align_pair(left.unsqueeze(-2), right.unsqueeze(-2))).squeeze(-2)

    def _shown_sizes(self) -> tuple[int, int]:
        return shown_sizes_of_both(self.left._shown_sizes(), self.right._shown_sizes())


def _one_line(bias: Bias) -> str:
    """Return the bias in one line, such as "Alibi(num_heads=4) + TensorBias(3, 5)"."""
    if isinstance(bias, SumOfBiases):
        return f"{_one_line(bias.left)} + {_one_line(bias.right)}"
    return f"{type(bias).__name__}({bias.extra_repr()})"


def _distances(rows: int, keys: int, positions: Positions) -> Tensor:
    """Return the distance j - p of each diagonal, starting at the last row and first key."""
    return torch.arange(rows + keys - 1, device=positions.device) - (rows - 1) - positions.first
