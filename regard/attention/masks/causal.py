"""Causal mask: each query attends to the keys up to its own position."""

from typing import final

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.attention.axes import Rule
from regard.attention.masks.base import Interval, Mask, PositionMask, may_lack_own_key
from regard.attention.positions import Positions


@final
class Causal(PositionMask):
    """Causal mask: query i of m attends to key j of n iff j <= i + (n - m)."""

    includes_first_key = True

    def materialize(self, positions: Positions) -> Bool[Tensor, "query key"]:
        return positions.key <= positions.query

    def interval(self, positions: Positions) -> Interval:
        last = positions.query + 1
        return torch.zeros_like(last), last

    def rule(self, positions: Positions) -> Rule:
        first = positions.first
        return lambda row, head, query, key: key <= query + first

    def may_have_fully_masked_rows(self, positions: Positions) -> bool:
        return may_lack_own_key(positions)

    def __repr__(self) -> str:
        return "causal()"


_CAUSAL = Causal()  # one object, which keeps its tensor


def causal() -> Mask:
    """Causal mask: each query attends to the keys up to its own position, j <= i + (n - m)."""
    return _CAUSAL
