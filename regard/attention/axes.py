"""Axes of a read: leading axes, then two more. Leading axes are aligned from the left.

    read        (batch, head, query, key)
    query       (batch, head, query, dim)
    keys        (batch,       key,   dim)   ->   (batch, 1, key,   dim)
    mask        (batch,       query, key)   ->   (batch, 1, query, key)
    mask        (             query, key)   ->   (1,     1, query, key)

The query has all leading axes of the read. Keys, values, masks and biases may have fewer: axes of size 1 are inserted
before their last two, so they broadcast over the leading axes that they lack.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from regard.attention.positions import Positions
from regard.compat.torch import is_eager

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""rule(row, head, query, key) of integer tensors, as the mask_mod of FlexAttention: True if the query may attend."""


def align(tensor: Tensor, num_axes: int) -> Tensor:
    """Insert axes of size 1 before the last two, so that leading axes are aligned from the left."""
    missing = num_axes - tensor.dim()
    if missing < 0:
        raise ValueError(f"a mask or bias must have at most the {num_axes} axes of the read, got {tensor.dim()}")
    leading = tensor.shape[:-2]
    return tensor.reshape(*leading, *(1,) * missing, *tensor.shape[-2:])


def align_pair(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Give both tensors the same number of axes, aligned from the left. Raises ValueError if they do not broadcast."""
    num_axes = max(left.dim(), right.dim())
    left, right = align(left, num_axes), align(right, num_axes)
    if any(a != b and 1 not in (a, b) for a, b in zip(left.shape, right.shape, strict=True)):
        raise ValueError(
            "masks or biases that are combined must broadcast, with leading axes aligned from the left, "
            f"got {tuple(left.shape)} and {tuple(right.shape)}"
        )
    return left, right


def make_lookup(table: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return a rule that indexes a tensor (row, head, query, key), of which any axis may be missing or have size 1."""
    table = align(table, 4)

    def entry(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        index = [
            i if size > 1 else torch.zeros_like(i) for i, size in zip((row, head, query, key), table.shape, strict=True)
        ]
        return table[tuple(index)]

    return entry


def is_inspectable(tensor: Tensor) -> bool:
    """Return True if Python may branch on the values of a tensor: on a CPU, and neither compiled nor under vmap."""
    return tensor.device.type == "cpu" and is_eager()


def check_broadcasts(name: str, tensor: Tensor, positions: Positions) -> None:
    """Raise ValueError unless a tensor (..., query, key) broadcasts to the read and is on its device."""
    rows, columns = tensor.shape[-2:]
    if rows not in (1, positions.num_queries) or columns not in (1, positions.num_keys):
        raise ValueError(
            f"{name} must be (..., {positions.num_queries} queries or 1, {positions.num_keys} keys or 1), "
            f"got {tuple(tensor.shape)}"
        )
    if tensor.device != positions.device:
        raise ValueError(f"{name} must be on the query's device {positions.device}, got {tensor.device}")


def widen(tensor: Tensor) -> Tensor:
    """Convert to float32 if the dtype is narrower: long sums in half precision stop growing."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
