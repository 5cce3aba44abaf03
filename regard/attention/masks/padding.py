"""Padding mask, and `Padded`, a batch with its lengths."""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.attention.axes import is_inspectable, select_rows, to_integers
from regard.attention.masks.base import Interval, Mask
from regard.attention.positions import Positions
from regard.compat.torch import register_named_tuple
from regard.ops.copies import copy_to


@final
class Padding(Mask):
    """Padding mask: row b has lengths[b] keys, the others are padding."""

    includes_first_key = True

    def __init__(self, lengths: Int[Tensor, "..."]):
        self.lengths = lengths
        # Checked once, here: on an accelerator every check would synchronize the device.
        self._may_be_empty = not is_inspectable(lengths) or bool((lengths < 1).any())

    def materialize(self, positions: Positions) -> Bool[Tensor, "... 1 key"]:
        return (positions.key < self.lengths.to(positions.device).unsqueeze(-1)).unsqueeze(-2)

    def interval(self, positions: Positions) -> Interval:
        last = self.lengths.to(positions.device)[..., None, None]
        return torch.zeros_like(last), last

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        return Padding(select_rows(self.lengths, index, 0))

    def may_have_fully_masked_rows(self, positions: Positions) -> bool:
        return self._may_be_empty or positions.num_keys == 0 or positions.key_positions is not None

    def __repr__(self) -> str:
        return f"padding({self.lengths.tolist()})"


class Padded(NamedTuple):
    """Padded batch: row b of the tensor has lengths[b] items at its start, then padding."""

    items: Tensor
    """(batch, time, ...)"""
    lengths: Int[Tensor, " batch"]
    """Number of items in each row."""

    @property
    def mask(self) -> Mask | None:
        """Mask that hides the padding; None if there is no padding."""
        return padding(self.lengths)

    @property
    def relations(self) -> Tensor | None:
        """Relations between items (Related); None: there are none."""
        return None

    def to(self, device: torch.device | str) -> "Padded":
        items = copy_to(self.items, device)
        return self._replace(items=items, lengths=copy_to(self.lengths, device))


register_named_tuple(Padded, "regard.Padded")


class Unpadded(Padded):
    """Batch without padding, such as the patches of images: its reads need no mask."""

    @classmethod
    def of(cls, items: Tensor) -> "Unpadded":
        return cls(items, torch.full((items.shape[0],), items.shape[1], device=items.device))

    @property
    def mask(self) -> None:
        return None


class Placed(Padded):
    """Padded batch whose items have positions in space, such as groups of points."""

    centers: Tensor
    """(batch, time, axes) in [0, 1]; padding is far away."""

    @classmethod
    def of(cls, items: Tensor, lengths: Int[Tensor, " batch"], centers: Tensor) -> "Placed":
        placed = cls(items, lengths)
        placed.centers = centers
        return placed

    def _replace(self, **fields: Any) -> "Placed":
        """Replace items or lengths; the places are kept."""
        return Placed.of(*super()._replace(**fields), self.centers)


class Related(Padded):
    """Padded batch with relations between its items: graphs, trees, layouts.

    The relations are a bias (floating point) or a mask (boolean, True = may attend) of the reads of
    the items by one another in an encoder, (batch, [head,] item, item).
    """

    _relations: Tensor

    @classmethod
    def of(cls, items: Tensor, lengths: Int[Tensor, " batch"], relations: Tensor) -> "Related":
        related = cls(items, lengths)
        related._relations = relations
        return related

    @property
    def relations(self) -> Tensor:
        return self._relations

    def _replace(self, **fields: Any) -> "Related":
        """Replace items or lengths; the relations are kept."""
        return Related.of(*super()._replace(**fields), self._relations)

    def to(self, device: torch.device | str) -> "Related":
        return Related.of(*super().to(device), copy_to(self._relations, device))


def padding(lengths: Int[Tensor, "..."] | Sequence[int] | int) -> Mask:
    """Padding mask: row b attends to keys j < lengths[b]; one number holds for all rows.

    Lengths (batch,) may exceed the keys, and are copied.
    Raises: TypeError if lengths are not integers, ValueError if one is negative.
    """
    return Padding(to_lengths("lengths", lengths))


def to_lengths(name: str, lengths: Tensor | Sequence[int] | int) -> Int[Tensor, "..."]:
    """Return a copy of the argument `name` as a tensor of lengths."""
    lengths = to_integers(name, lengths, meaning="items per row")
    if is_inspectable(lengths) and bool((lengths < 0).any()):
        raise ValueError(f"{name} must not be negative, got {int(lengths.min())}")
    return lengths
