"""Axes of a read: leading axes, then two more. Leading axes line up from the left.

    read        (batch, head, query, key)
    query       (batch, head, query, dim)
    keys        (batch,       key,   dim)   ->   (batch, 1, key,   dim)
    mask        (batch,       query, key)   ->   (batch, 1, query, key)
    mask        (             query, key)   ->   (1,     1, query, key)

The query has all leading axes of the read. Keys, values, masks and biases with fewer serve all the later ones, and axes
of size 1 go before their last two.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from regard.attention.places import Places

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""rule(row, head, query, key) of integer tensors: may query number `query` attend to key number `key`?"""


def align(tensor: Tensor, num_axes: int) -> Tensor:
    """Insert axes of size 1 before the last two, so that leading axes line up from the left."""
    missing = num_axes - tensor.dim()
    if missing < 0:
        raise ValueError(f"mask or bias has {tensor.dim()} axes, but the read has only {num_axes}")
    leading = tensor.shape[:-2]
    return tensor.reshape(*leading, *(1,) * missing, *tensor.shape[-2:])


def line_up(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Both with the same number of axes, leading axes from the left. Raises ValueError if they do not broadcast."""
    num_axes = max(left.dim(), right.dim())
    left, right = align(left, num_axes), align(right, num_axes)
    if any(ours != theirs and 1 not in (ours, theirs) for ours, theirs in zip(left.shape, right.shape, strict=True)):
        raise ValueError(
            "masks or biases that are combined must have the same axes or some of size 1, lined up from the left, "
            f"but have {tuple(left.shape)} and {tuple(right.shape)}"
        )
    return left, right


def look_up(table: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """A function that reads a tensor (row, head, query, key) of which any axis may be missing or have size 1."""
    table = align(table, 4)

    def entry(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        index = [
            at if size > 1 else torch.zeros_like(at)
            for at, size in zip((row, head, query, key), table.shape, strict=True)
        ]
        return table[tuple(index)]

    return entry


def can_look_at(tensor: Tensor) -> bool:
    """Whether the values of a tensor may steer Python: not on an accelerator, nor in a compiled or mapped function."""
    return tensor.device.type == "cpu" and is_plain()


def is_plain() -> bool:
    """Whether operators run as they are called, on numbers: not in a function that is compiled, mapped or traced."""
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return torch._C._len_torch_dispatch_stack() == 0


def check_fits(name: str, tensor: Tensor, places: Places) -> None:
    """Raise ValueError unless (..., query, key) broadcasts to the read and lies on its device."""
    rows, columns = tensor.shape[-2:]
    if rows not in (1, places.num_queries) or columns not in (1, places.num_keys):
        raise ValueError(
            f"{name} must be (..., {places.num_queries} queries or 1, {places.num_keys} keys or 1), "
            f"but is {tuple(tensor.shape)}"
        )
    if tensor.device != places.device:
        raise ValueError(f"{name} must be on the query's device {places.device}, but is on {tensor.device}")
