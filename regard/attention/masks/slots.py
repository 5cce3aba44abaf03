"""Valid-slot mask: the filled slots of a memory of fixed size."""

from typing import final

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.attention.axes import Rule, is_inspectable
from regard.attention.masks.base import Interval, PositionMask
from regard.attention.positions import Positions


@final
class FilledSlots(PositionMask):
    """Valid-slot mask: every query attends to filled slots, with a window to the last ones.

    0 <= position(key) <= position(last query), and position(key) > position(query) - window.
    """

    def __init__(self, window: int | None = None):
        self.window = window

    def materialize(self, positions: Positions) -> Bool[Tensor, "rows key"]:
        key = positions.key
        allowed = (key < _end(positions)).unsqueeze(0)
        if positions.key_positions is not None:
            allowed = allowed & (key >= 0)
        return allowed if self.window is None else allowed & (key > positions.query - self.window)

    def interval(self, positions: Positions) -> Interval:
        query = positions.query
        first = zero = torch.zeros_like(query)
        if self.window is not None:
            first = (query - self.window + 1).clamp(min=0)
        return first, zero + _end(positions)

    def rule(self, positions: Positions) -> Rule:
        if self.window is not None:
            return super().rule(positions)
        end = _end(positions)
        return lambda row, head, query, key: key < end

    def may_have_fully_masked_rows(self, positions: Positions) -> bool:
        if positions.start is None:
            return positions.num_queries > positions.num_keys
        if isinstance(positions.start, Tensor) and not is_inspectable(positions.start):
            return True
        return int(positions.start) < 0

    def __repr__(self) -> str:
        return "filled_slots()" if self.window is None else f"filled_slots(window={self.window})"


def _end(positions: Positions) -> int | Tensor:
    """Return the position after the last query of the whole read."""
    if positions.start is None:
        return positions.num_keys
    return positions.start + positions.num_queries
