"""Axes of a read: leading axes, then two more. Leading axes are aligned from the left.

    read        (batch, head, query, key)
    query       (batch, head, query, dim)
    keys        (batch,       key,   dim)   ->   (batch, 1, key,   dim)
    mask        (batch,       query, key)   ->   (batch, 1, query, key)
    mask        (             query, key)   ->   (1,     1, query, key)

The query has all leading axes of the read. Keys, values, masks and biases may have fewer: axes of
size 1 are inserted before their last two, so they broadcast over the leading axes that they lack.

The arguments of a read are checked here: errors are raised, with names and shapes, before anything
is computed.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.positions import Positions
from regard.compat.torch import is_eager

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""rule(row, head, query, key) of integer tensors, as the mask_mod of FlexAttention: True if the
query may attend."""


class ReadTensors(NamedTuple):
    """Query, keys and values of a read, by the names of its arguments."""

    query: Tensor
    keys: Tensor
    values: Tensor


def align(tensor: Tensor, num_axes: int) -> Tensor:
    """Insert axes of size 1 before the last two, so that leading axes are aligned from the left."""
    missing = num_axes - tensor.dim()
    if missing < 0:
        raise ValueError(
            f"a mask or bias must have at most the {num_axes} axes of the read, got {tensor.dim()}"
        )
    leading = tensor.shape[:-2]
    return tensor.reshape(*leading, *(1,) * missing, *tensor.shape[-2:])


def align_pair(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Give both tensors the same number of axes, aligned from the left. Raises ValueError if they
    do not broadcast."""
    num_axes = max(left.dim(), right.dim())
    left, right = align(left, num_axes), align(right, num_axes)
    if any(a != b and 1 not in (a, b) for a, b in zip(left.shape, right.shape, strict=True)):
        raise ValueError(
            "masks or biases that are combined must broadcast, with leading axes aligned from the "
            "left, "
            f"got {tuple(left.shape)} and {tuple(right.shape)}"
        )
    return left, right


def make_lookup(table: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return a rule that indexes a tensor (row, head, query, key), of which any axis may be missing
    or have size 1."""
    table = align(table, 4)

    def entry(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        index = [
            i if size > 1 else torch.zeros_like(i)
            for i, size in zip((row, head, query, key), table.shape, strict=True)
        ]
        return table[tuple(index)]

    return entry


def is_inspectable(tensor: Tensor) -> bool:
    """Return True if Python may branch on the values of a tensor: on a CPU, and neither compiled
    nor under vmap."""
    return tensor.device.type == "cpu" and is_eager()


def check_broadcasts(name: str, tensor: Tensor, positions: Positions) -> None:
    """Raise ValueError unless a tensor (..., query, key) broadcasts to the read and is on its
    device."""
    rows, columns = tensor.shape[-2:]
    if rows not in (1, positions.num_queries) or columns not in (1, positions.num_keys):
        raise ValueError(
            f"{name} must be (..., {positions.num_queries} queries or 1, {positions.num_keys} keys "
            f"or 1), "
            f"got {tuple(tensor.shape)}"
        )
    if tensor.device != positions.device:
        raise ValueError(
            f"{name} must be on the query's device {positions.device}, got {tensor.device}"
        )


def widen(tensor: Tensor) -> Tensor:
    """Convert to float32 if the dtype is narrower: long sums in half precision stop growing."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def unpack_memory(query: Tensor, memory: object) -> ReadTensors:
    """Return query, keys and values of a pair (keys, values), aligned to the axes of the query;
    checks their types."""
    if not isinstance(memory, tuple | list) or len(memory) != 2:
        raise TypeError(
            f"memory must be a Memory or a pair (keys, values), got {_describe(memory)}"
        )
    tensors = ReadTensors(query, *memory)
    if all(
        isinstance(tensor, Tensor) and tensor.dim() == tensors[0].dim() >= 2 for tensor in tensors
    ):
        return tensors
    return align_to_query(*tensors)


def align_to_query(query: Tensor, keys: Tensor, values: Tensor) -> ReadTensors:
    """Give keys and values as many axes as the query: a memory may omit its last leading axes, a
    query may not.

    Raises: TypeError for arguments that are not tensors; ValueError for fewer than two axes, and
            for a query with fewer axes than its memory.
    """
    tensors = ReadTensors(query, keys, values)
    for name, tensor in tensors._asdict().items():
        check_axes(name, tensor)
    missing = max(keys.dim(), values.dim()) - query.dim()
    if missing > 0:
        memory = max(keys, values, key=Tensor.dim)
        fix = f"query[{', '.join(['None'] * missing)}]"
        if query.dim() > 2:
            last = "".join([f".unsqueeze({query.dim() - 2})"] * missing)
            fix = f"{fix} if its first leading axes are missing, query{last} if its last ones are"
        raise ValueError(
            f"query must have all leading axes of its memory, {tuple(memory.shape[:-2])}, "
            f"got shape {tuple(query.shape)}; write {fix}"
        )
    return ReadTensors(query, align(keys, query.dim()), align(values, query.dim()))


def check_axes(name: str, tensor: Tensor) -> None:
    """Raise TypeError unless `tensor` is a tensor, ValueError unless it has at least two axes."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if tensor.dim() < 2:
        axes = {"query": "query, dim", "keys": "key, dim", "values": "key, value_dim"}[name]
        raise ValueError(f"{name} must be (..., {axes}), got shape {tuple(tensor.shape)}")


def check_pair(query: Tensor, keys: Tensor, values: Tensor) -> None:
    """Raise TypeError or ValueError unless queries can read these keys and values.

    Rules: floating-point tensors of one dtype (with autocast they may differ) on one device, of
    shapes (..., query, dim), (..., key, key_dim) and (..., key, value_dim), where dim and key_dim
    are at least 1.
    """
    same = (
        query.dtype == keys.dtype == values.dtype and query.device == keys.device == values.device
    )
    if same and query.is_floating_point() and query.shape[-1] and keys.shape[-1]:
        return
    for name, tensor in (("query", query), ("keys", keys), ("values", values)):
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, got dtype {tensor.dtype}")
        if tensor.dtype != query.dtype and not torch.is_autocast_enabled(query.device.type):
            raise TypeError(f"{name} must have the query's dtype {query.dtype}, got {tensor.dtype}")
        if tensor.device != query.device:
            raise ValueError(
                f"{name} must be on the query's device {query.device}, got {tensor.device}"
            )
        if tensor.shape[-1] == 0 and name != "values":
            raise ValueError(
                f"the last axis of {name} must not be empty, got shape {tuple(tensor.shape)}"
            )


def broadcast_leading(query: Tensor, keys: Tensor, values: Tensor) -> tuple[int, ...]:
    """Return the leading axes of the read: those of query, keys and values, broadcast.

    The tensors have the same number of axes. With two or more leading axes, the last is the heads,
    and the heads of the memory may divide those of the queries. Raises: ValueError if the axes do
    not broadcast.
    """
    of_query, last = query.shape[:-2], query.dim() - 3
    if of_query == keys.shape[:-2] == values.shape[:-2]:
        return of_query
    sizes = zip(of_query, keys.shape[:-2], values.shape[:-2], strict=True)
    leading = tuple(next((size for size in axis if size != 1), 1) for axis in sizes)
    for name, tensor in (("keys", keys), ("values", values)):
        shape = tensor.shape[:-2]
        for axis, (size, expected) in enumerate(zip(shape, leading, strict=True)):
            is_grouped = (
                axis == last > 0
                and size > 0
                and of_query[axis] > size
                and of_query[axis] % size == 0
            )
            if size not in (1, expected) and not is_grouped:
                heads = ", or a divisor of the heads" if last > 0 else ""
                raise ValueError(
                    f"the leading axes of {name} must be those of the read, {leading}, or "
                    f"1{heads}, "
                    f"aligned from the left, got {tuple(shape)}"
                )
    return leading


def check_integer(name: str, value: int, least: int) -> None:
    """Raise TypeError unless `value` is an integer, ValueError if it is below `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _describe(memory: object) -> str:
    return (
        f"{type(memory).__name__} of {len(memory)}"
        if isinstance(memory, tuple | list)
        else type(memory).__name__
    )
