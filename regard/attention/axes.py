"""Axes of a read: leading axes, then two more. Leading axes are aligned from the left.

    read        (batch, head, query, key)
    query       (batch, head, query, dim)
    keys        (batch,       key,   dim)   ->   (batch, 1, key,   dim)
    mask        (batch,       query, key)   ->   (batch, 1, query, key)
    mask        (             query, key)   ->   (1,     1, query, key)

The query has all leading axes of the read. Keys, values, masks and biases may have fewer: axes of
size 1 are inserted before their last two, so they broadcast over the leading axes that they lack.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, no_type_check

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.attention.positions import Positions
from regard.compat.torch import is_eager

Queries = Float[Tensor, "... query query_dim"]
Keys = Float[Tensor, "... key key_dim"]
MappedQueries = Float[Tensor, "... query dim"]
MappedKeys = Float[Tensor, "... key dim"]
Pairs = Float[Tensor, "... query key"]
"""A number for each query and key: scores or weights."""
Allowed = Bool[Tensor, "..."] | None
"""The pairs that the mask allows; None: all."""
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""rule(row, head, query, key) of integer tensors, as the mask_mod of FlexAttention."""


def align(tensor: Tensor, num_axes: int) -> Tensor:
    """Insert axes of size 1 before the last two, so that leading axes are aligned from the left."""
    missing = num_axes - tensor.dim()
    if missing < 0:
        raise ValueError(
            f"a mask or bias must have at most the {num_axes} axes of the read, got {tensor.dim()}"
        )
    return tensor.reshape(*tensor.shape[:-2], *(1,) * missing, *tensor.shape[-2:])


def align_pair(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Give both tensors the same number of axes, aligned from the left."""
    num_axes = max(left.dim(), right.dim())
    return align(left, num_axes), align(right, num_axes)


def make_lookup(table: Tensor) -> Rule:
    """Return a rule that indexes a table (row, head, query, key); axes may be missing or 1."""
    table = align(table, 4)
    return lambda *index: entry_at(table, *index)


@no_type_check  # a checked function could not be compiled
def entry_at(table: Tensor, *index: Tensor) -> Tensor:
    """Return an entry of a table of which any axis may have size 1."""
    place = []
    for number, size in zip(index, table.shape, strict=True):
        place.append(number if size > 1 else torch.zeros_like(number))
    return table[tuple(place)]


def with_four_axes(tensor: Tensor, *, missing: int = 1) -> Tensor:
    """Return a view (batch, head, ..., ...); of three axes, axis `missing` is the one of size 1."""
    if tensor.dim() == 3:
        return tensor.unsqueeze(missing)
    return tensor[(None,) * (4 - tensor.dim()) + (...,)]


def select_rows(tensor: Tensor, index: Tensor, num_axes: int) -> Tensor:
    """Select rows of the first axis, if there is one before `num_axes` others, not of size 1."""
    if tensor.dim() <= num_axes or len(tensor) == 1:
        return tensor
    return tensor.index_select(0, index.to(tensor.device))


def is_inspectable(tensor: Tensor) -> bool:
    """Return True if Python may branch on the values: on a CPU, neither compiled nor under vmap."""
    return tensor.device.type == "cpu" and is_eager()


def check_broadcasts(name: str, tensor: Tensor, positions: Positions) -> None:
    """Raise ValueError unless a tensor (..., query, key) broadcasts to the read."""
    rows, columns = tensor.shape[-2:]
    if rows not in (1, positions.num_queries) or columns not in (1, positions.num_keys):
        raise ValueError(
            f"{name} must be (..., {positions.num_queries} queries or 1, {positions.num_keys} keys "
            f"or 1), got {tuple(tensor.shape)}"
        )


def widen(tensor: Tensor) -> Tensor:
    """Convert to float32 if the dtype is narrower: long sums in half precision stop growing."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def check_strided(name: str, tensor: Tensor) -> None:
    """Raise TypeError for a nested or sparse tensor."""
    if tensor.is_nested or tensor.layout != torch.strided:
        raise TypeError(f"{name} must be neither nested nor sparse; regard.Padded has lengths")


def check_part(name: str, part: Any, base: type[Any]) -> None:
    """Raise TypeError unless a part of a read is an object of its base class."""
    if not isinstance(part, base):
        kind = f"the class {part.__name__}" if isinstance(part, type) else type(part).__name__
        raise TypeError(f"{name} must be an object of class {base.__name__}, got {kind}")


def broadcast_leading(query: Tensor, keys: Tensor, values: Tensor) -> tuple[int, ...]:
    """Return the leading axes of the read: those of query, keys and values, broadcast.

    The tensors have the same number of axes. With two or more leading axes, the last is the heads,
    and the heads of the memory may divide those of the queries.
    Raises: ValueError if the axes do not broadcast.
    """
    sizes = zip(query.shape[:-2], keys.shape[:-2], values.shape[:-2], strict=True)
    leading = tuple(next((size for size in axis if size != 1), 1) for axis in sizes)
    last = len(leading) - 1
    for name, tensor in (("keys", keys), ("values", values)):
        for axis, size in enumerate(tensor.shape[:-2]):
            heads = query.shape[axis]
            is_grouped = axis == last > 0 and 0 < size < heads and heads % size == 0
            if size not in (1, leading[axis]) and not is_grouped:
                raise ValueError(
                    f"the leading axes of {name} must be those of the read, {leading}, or 1, or a "
                    f"divisor of the heads, aligned from the left, got {tuple(tensor.shape[:-2])}"
                )
    return leading


def to_integers(name: str, numbers: Tensor | Sequence | int, *, meaning: str) -> Tensor:
    """Return a copy as a tensor of int64. Raises: TypeError unless all numbers are integers."""
    if not isinstance(numbers, Tensor):
        is_empty = isinstance(numbers, Sequence) and len(numbers) == 0
        numbers = torch.tensor(numbers, dtype=torch.int64 if is_empty else None)
    check_strided(name, numbers)
    if numbers.dtype == torch.bool or numbers.is_floating_point() or numbers.is_complex():
        raise TypeError(f"{name} must be integers ({meaning}), got {numbers.dtype}")
    return numbers.to(torch.int64, copy=True)


def check_integer(name: str, value: int, least: int, most: float = math.inf) -> None:
    """Raise TypeError unless `value` is an integer, ValueError unless it is within the range."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most}, got {value}")
