"""Sliding-window mask: local attention (beltagy2020)."""

from typing import final

from jaxtyping import Bool
from torch import Tensor

from regard.attention.axes import Rule, check_integer
from regard.attention.masks.base import Interval, Mask, PositionMask, may_lack_own_key
from regard.attention.positions import Positions


@final
class Window(PositionMask):
    """Sliding-window mask: the query at position p attends to p + ahead - size < j <= p + ahead."""

    def __init__(self, size: int, ahead: int = 0):
        self.size, self.ahead, self.band = size, ahead, (size - 1 - ahead, ahead)

    def materialize(self, positions: Positions) -> Bool[Tensor, "query key"]:
        return self._is_inside(positions.query, positions.key)

    def interval(self, positions: Positions) -> Interval:
        last = positions.query + (self.ahead + 1)
        return last - self.size, last

    def rule(self, positions: Positions) -> Rule:
        first = positions.first
        return lambda row, head, query, key: self._is_inside(query + first, key)

    def may_have_fully_masked_rows(self, positions: Positions) -> bool:
        return may_lack_own_key(positions)

    def _is_inside(self, query: Tensor, key: Tensor) -> Tensor:
        last = query + self.ahead
        return (key > last - self.size) & (key <= last)

    def __repr__(self) -> str:
        return f"window({self.size}, ahead={self.ahead})" if self.ahead else f"window({self.size})"


def window(size: int, ahead: int = 0) -> Mask:
    """Sliding-window mask of `size` keys, the query's own included, `ahead` of them after it.

    The query at position p attends to p + ahead - size < j <= p + ahead. `window(64)` is causal
    attention to the last 64 keys; `window(2 * w + 1, ahead=w)` attends to w keys on either side.
    Raises: TypeError unless both are integers, ValueError unless size >= 1 and 0 <= ahead < size.
    Source: beltagy2020, section 3.1 (sliding window).
    """
    check_integer("size", size, 1)
    check_integer("ahead", ahead, 0)
    if ahead >= size:
        raise ValueError(f"ahead must be less than the size {size}, got {ahead}")
    return Window(size, ahead)
