"""Prefix-LM mask: bidirectional in the prefix, then causal (raffel2020)."""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.attention.axes import Rule, align_pair, make_lookup, select_rows
from regard.attention.masks.base import Interval, Mask, may_lack_own_key
from regard.attention.masks.padding import to_lengths
from regard.attention.positions import Positions


@final
class Prefix(Mask):
    """Prefix-LM mask: j <= p or j < lengths[b]; see `prefix`."""

    def __init__(self, lengths: Int[Tensor, "..."]):
        self.lengths = lengths

    def materialize(self, positions: Positions) -> Bool[Tensor, "... query key"]:
        return positions.key < self._last(positions)

    def interval(self, positions: Positions) -> Interval:
        last = self._last(positions)
        return torch.zeros_like(last), last

    def rule(self, positions: Positions) -> Rule:
        first, length = positions.first, make_lookup(self._column(positions))
        return lambda *index: (index[3] <= index[2] + first) | (index[3] < length(*index))

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        return Prefix(select_rows(self.lengths, index, 0))

    def may_have_fully_masked_rows(self, positions: Positions) -> bool:
        return may_lack_own_key(positions)

    def _last(self, positions: Positions) -> Tensor:
        return torch.maximum(*align_pair(positions.query + 1, self._column(positions)))

    def _column(self, positions: Positions) -> Tensor:
        return self.lengths.to(positions.device)[..., None, None]

    def __repr__(self) -> str:
        return f"prefix({self.lengths.tolist()})"


def prefix(lengths: Int[Tensor, "..."] | Sequence[int] | int) -> Mask:
    """Prefix-LM mask: the query at p of row b attends to keys j < max(p + 1, lengths[b]).

    One number holds for all rows. Attention is bidirectional within the prefix and causal after it.
    Raises: TypeError if lengths are not integers, ValueError if one is negative.
    Source: raffel2020, section 3.2.1 (causal with prefix).
    """
    return Prefix(to_lengths("lengths", lengths))
