"""Biases: numbers that are added to the scores before the choice.

    weight_ij = choose_j(score_ij + bias_ij)

A bias is a function of places (ALiBi, T5), of places and the query (Shaw), or given as a tensor. It may be learned.
A bias of -inf hides its pair as a mask would. Leading axes line up from the left, as those of masks do. More biases
are in regard.attention.positional.
"""

from abc import ABC, abstractmethod
from itertools import chain
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.axes import check_fits, line_up
from regard.attention.picture import Picture, draw_bias
from regard.attention.places import Places


class Bias(nn.Module, ABC):
    """What is added to the scores of a read."""

    @abstractmethod
    def see(self, query: Float[Tensor, "... query query_dim"], places: Places) -> Float[Tensor, "..."]:
        """Tensor that broadcasts to (leading axes of this bias ..., queries, keys) of these places.

        `query` are the queries of these places, as they were given to the read, before any score mapped them.
        """

    def diagonals(self, places: Places, dtype: torch.dtype = torch.float32) -> Float[Tensor, "... diagonal"] | None:
        """The bias in O(m + n), for those that are the same along every diagonal; None for others.

        Entry j - i + m - 1 of the last axis is the bias of query i of m and key j of n, in the dtype asked for; places
        are aligned and whole (else None).
        """
        return None

    def may_be_infinite(self) -> bool:
        """Whether it holds numbers that are not finite beside -inf, which hides: only a bias that is given may."""
        return False

    def select(self, index: Int[Tensor, " rows"]) -> "Bias":
        """The bias of those rows of the first leading axis; unchanged if it is the same for all of them."""
        return self

    def picture(
        self, num_queries: int, num_keys: int, *, query: Tensor | None = None, title: str | None = None
    ) -> Picture:
        """Draw the bias: queries down, keys across, blue below zero, orange above, hatched where it is -inf.

        query: the queries (..., query, query_dim), for a bias that depends on them; zeros of size 1 unless given.
        """
        if query is None:
            state = next(chain(self.parameters(), self.buffers()), torch.empty(0))
            query = torch.zeros(num_queries, 1, device=state.device)
        places = Places(num_queries, num_keys, query.device)

        def see(tile: Places) -> Tensor:
            assert tile.rows is not None
            return self.see(query[..., tile.rows[0] : tile.rows[1], :], tile)

        return draw_bias(see, places, title=_one_line(self) if title is None else title)

    def __add__(self, other: "Bias") -> "Bias":
        return Sum(self, other)


@final
class Given(Bias):
    """As the floating tensor (..., query, key) says; axes of size 1 broadcast."""

    def __init__(self, tensor: Float[Tensor, "..."]):
        super().__init__()
        if not isinstance(tensor, Tensor):
            raise TypeError(f"bias must be a Bias or a floating tensor, but is {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"bias must be floating point, but has dtype {tensor.dtype}; for a mask see regard.dense")
        if tensor.dim() < 2:
            raise ValueError(f"bias must be (..., query, key), but has shape {tuple(tensor.shape)}")
        self.tensor = tensor

    def see(self, query: Float[Tensor, "... query query_dim"], places: Places) -> Float[Tensor, "..."]:
        """The tensor itself, checked."""
        check_fits("bias", self.tensor, places)
        return places.rows_of(self.tensor)

    def may_be_infinite(self) -> bool:
        """Whether infinity or NaN is the largest number."""
        return self.tensor.numel() > 0 and not bool(self.tensor.detach().amax() < float("inf"))

    def select(self, index: Int[Tensor, " rows"]) -> Bias:
        """Those rows, when there is a leading axis that tells rows apart."""
        if self.tensor.dim() < 3 or self.tensor.shape[0] == 1:
            return self
        return Given(self.tensor.index_select(0, index))

    def extra_repr(self) -> str:
        """Sizes."""
        return ", ".join(map(str, self.tensor.shape))


@final
class Sum(Bias):
    """bias = left + right."""

    def __init__(self, left: Bias, right: Bias):
        super().__init__()
        for side in (left, right):
            if not isinstance(side, Bias):
                raise TypeError(f"only biases add to biases, but got {type(side).__name__}")
        self.left, self.right = left, right

    def see(self, query: Float[Tensor, "... query query_dim"], places: Places) -> Float[Tensor, "..."]:
        """Both, added."""
        return torch.add(*line_up(self.left.see(query, places), self.right.see(query, places)))

    def diagonals(self, places: Places, dtype: torch.dtype = torch.float32) -> Float[Tensor, "... diagonal"] | None:
        """Both, added, if both are the same along diagonals."""
        left, right = self.left.diagonals(places, dtype), self.right.diagonals(places, dtype)
        if left is None or right is None:
            return None
        # An axis is added because leading axes line up before the last two.
        return torch.add(*line_up(left.unsqueeze(-2), right.unsqueeze(-2))).squeeze(-2)

    def may_be_infinite(self) -> bool:
        """Whether either does."""
        return self.left.may_be_infinite() or self.right.may_be_infinite()

    def select(self, index: Int[Tensor, " rows"]) -> Bias:
        """Both of those rows."""
        return Sum(self.left.select(index), self.right.select(index))


def _one_line(bias: Bias) -> str:
    """Alibi(num_heads=4) + Given(3, 5)."""
    if isinstance(bias, Sum):
        return f"{_one_line(bias.left)} + {_one_line(bias.right)}"
    return f"{type(bias).__name__}({bias.extra_repr()})"
