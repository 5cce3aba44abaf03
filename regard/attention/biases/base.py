"""Attention biases: numbers that are added to the scores before the softmax (or another choice).

    weight_ij = choice_j(score_ij + bias_ij)

A bias is a function of positions (ALiBi, T5), of positions and the query (Shaw), or a tensor. It
may be learned. A bias of -inf hides its pair as a mask would. Leading axes are aligned from the
left, as those of masks are.
"""

from abc import ABC, abstractmethod
from itertools import chain
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.axes import align_pair, check_broadcasts
from regard.attention.parts import check_pairs, check_result, describe_part
from regard.attention.picture import SHOWN, Picture, draw_bias, shown_sizes, shown_sizes_of_both
from regard.attention.positions import Positions


class Bias(nn.Module, ABC):
    """Base class of attention biases, which are added to the scores; `+` adds biases and
    tensors."""

    @abstractmethod
    def materialize(
        self, query: Float[Tensor, "... query query_dim"], positions: Positions
    ) -> Float[Tensor, "..."]:
        """Return a tensor that broadcasts to (leading axes ..., queries, keys) at these positions.

        `query` are the queries at these positions, as passed to the read, before any score mapped
        them.
        """

    def diagonals(
        self, positions: Positions, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "... diagonal"] | None:
        """Return one number per diagonal if the bias is constant along diagonals, in O(m + n);
        otherwise None.

        Entry j - i + m - 1 of the last axis is the bias of query i of m and key j of n, in the
        given dtype. Positions other than the default ones, and tiles, give None.
        """
        return None

    def may_be_infinite(self) -> bool:
        """Return True if the bias may contain NaN or +inf (-inf hides a pair and does not
        count)."""
        return False

    def select(self, index: Int[Tensor, " rows"]) -> "Bias":
        """Select the rows `index` of the first leading axis; a bias without that axis is
        unchanged."""
        return self

    def picture(
        self,
        num_queries: int,
        num_keys: int,
        *,
        query: Tensor | None = None,
        title: str | None = None,
    ) -> Picture:
        """Draw the bias: queries down, keys across, blue above zero, orange below, hatched where it
        is -inf.

        query: the queries (..., query, query_dim), for a bias that depends on them; by default
               zeros of size 1.
        """
        if query is None:
            state = next(chain(self.parameters(), self.buffers()), torch.empty(0))
            query = torch.zeros(num_queries, 1, device=state.device)
        positions = Positions(num_queries, num_keys, query.device)

        def materialize(tile: Positions) -> Tensor:
            assert tile.rows is not None
            return self.materialize(query[..., tile.rows[0] : tile.rows[1], :], tile)

        return draw_bias(materialize, positions, title=_one_line(self) if title is None else title)

    def _repr_svg_(self) -> str | None:
        """Return the picture for notebooks, of eight queries and keys if the bias has no sizes;
        None if it needs the queries.
        """
        try:
            return self.picture(*self._shown_sizes()).svg
        except (IndexError, RuntimeError, ValueError):
            return None

    def _shown_sizes(self) -> tuple[int, int]:
        """Return the number of queries and keys that a notebook shows."""
        return SHOWN, SHOWN

    def __add__(self, other: "Bias | Tensor") -> "Bias":
        return SumOfBiases(self, TensorBias(other) if isinstance(other, Tensor) else other)

    def __radd__(self, other: Tensor) -> "Bias":
        return SumOfBiases(TensorBias(other), self)


class DistanceBias(Bias):
    """Base class of biases that depend only on the distance j - p (and the head): one number per
    diagonal."""

    @abstractmethod
    def at(self, distance: Int[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
        """Return the bias ([head,] ...) at these distances, position of the key minus position of
        the query."""

    def materialize(
        self, query: Float[Tensor, "... query query_dim"], positions: Positions
    ) -> Float[Tensor, "1 ... query key"]:
        """Return the bias, the same for every row of the batch."""
        rows, keys = positions.num_rows, positions.num_keys
        # `unfold` fixes the number of keys in an exported program.
        if (
            positions.key_positions is not None
            or rows == 0
            or keys == 0
            or torch.compiler.is_exporting()
        ):
            return self._checked_at(positions.key - positions.query, query.dtype).unsqueeze(0)
        # One number per diagonal, expanded over the rows: gradients are summed along diagonals
        # before the table.
        diagonals = self._checked_at(_distances(rows, keys, positions), query.dtype)
        return diagonals.unfold(-1, keys, 1).flip(-2).unsqueeze(0)

    def diagonals(
        self, positions: Positions, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "1 ... diagonal"] | None:
        """Return one number per diagonal; None for positions other than the default ones, and for
        tiles."""
        if (
            not positions.is_aligned
            or positions.rows is not None
            or positions.num_queries == 0
            or positions.num_keys == 0
        ):
            return None
        return self._checked_at(
            _distances(positions.num_queries, positions.num_keys, positions), dtype
        ).unsqueeze(0)

    def _checked_at(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        return check_result(self, "at", self.at(distance, dtype), *distance.shape)


@final
class TensorBias(Bias):
    """Bias from a floating-point tensor (..., query, key); axes of size 1 broadcast."""

    def __init__(self, tensor: Float[Tensor, "..."]):
        super().__init__()
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"bias must be a Bias or a floating-point tensor, got {describe_part(tensor)}"
            )
        if not tensor.is_floating_point():
            raise TypeError(
                f"bias must be floating point, got {tensor.dtype}; pass a boolean tensor as "
                f"mask=regard.dense(tensor)"
            )
        if tensor.dim() < 2:
            raise ValueError(f"bias must be (..., query, key), got shape {tuple(tensor.shape)}")
        self.tensor = tensor

    def materialize(
        self, query: Float[Tensor, "... query query_dim"], positions: Positions
    ) -> Float[Tensor, "..."]:
        """Return the tensor, after checking that it broadcasts."""
        check_broadcasts("bias", self.tensor, positions)
        return positions.rows_of(self.tensor)

    def _shown_sizes(self) -> tuple[int, int]:
        return shown_sizes(self.tensor)

    def may_be_infinite(self) -> bool:
        """Return True if the largest number is infinite or NaN."""
        return self.tensor.numel() > 0 and not bool(self.tensor.detach().amax() < float("inf"))

    def select(self, index: Int[Tensor, " rows"]) -> Bias:
        """Select rows, if the tensor has a leading axis of rows."""
        if self.tensor.dim() < 3 or self.tensor.shape[0] == 1:
            return self
        return TensorBias(self.tensor.index_select(0, index))

    def extra_repr(self) -> str:
        """Sizes."""
        return ", ".join(map(str, self.tensor.shape))


@final
class SumOfBiases(Bias):
    """Sum of two biases: bias = left + right."""

    def __init__(self, left: Bias, right: Bias):
        super().__init__()
        for side in (left, right):
            if not isinstance(side, Bias):
                raise TypeError(
                    f"a bias can only be added to a Bias or a tensor, got {type(side).__name__}"
                )
        self.left, self.right = left, right

    def materialize(
        self, query: Float[Tensor, "... query query_dim"], positions: Positions
    ) -> Float[Tensor, "..."]:
        """Return the sum of both."""
        tensors = (
            check_pairs(side, side.materialize(query, positions), positions, is_mask=False)
            for side in (self.left, self.right)
        )
        return torch.add(*align_pair(*tensors))

    def diagonals(
        self, positions: Positions, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "... diagonal"] | None:
        """Return the sum of both, if both are constant along diagonals."""
        left, right = self.left.diagonals(positions, dtype), self.right.diagonals(positions, dtype)
        if left is None or right is None:
            return None
        # A query axis is added because leading axes are aligned before the last two.
        return torch.add(*align_pair(left.unsqueeze(-2), right.unsqueeze(-2))).squeeze(-2)

    def _shown_sizes(self) -> tuple[int, int]:
        return shown_sizes_of_both(self.left._shown_sizes(), self.right._shown_sizes())

    def may_be_infinite(self) -> bool:
        """Return True if either may."""
        return self.left.may_be_infinite() or self.right.may_be_infinite()

    def select(self, index: Int[Tensor, " rows"]) -> Bias:
        """Select rows of both."""
        return SumOfBiases(self.left.select(index), self.right.select(index))


def check_bias_device(name: str, tensor: Tensor, query: Tensor) -> None:
    """Raise ValueError if a tensor of a bias is not on the query's device."""
    if tensor.device != query.device:
        raise ValueError(
            f"{name} must be on the query's device {query.device}, got {tensor.device}"
        )


def _one_line(bias: Bias) -> str:
    """Return the bias in one line, such as "Alibi(num_heads=4) + TensorBias(3, 5)"."""
    if isinstance(bias, SumOfBiases):
        return f"{_one_line(bias.left)} + {_one_line(bias.right)}"
    return f"{type(bias).__name__}({bias.extra_repr()})"


def _distances(rows: int, keys: int, positions: Positions) -> Tensor:
    """Return the distance j - p of each of the rows + keys - 1 diagonals, starting at the last row
    and first key."""
    return torch.arange(rows + keys - 1, device=positions.device) - (rows - 1) - positions.first
