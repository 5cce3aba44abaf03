"""Checks of the parts of a read that a caller gives: each is of its base class, and returns what fits the read.

A tensor of another shape might broadcast, and a floating-point mask might be taken for a boolean one.
"""

from typing import Any

import torch
from torch import Tensor

from regard.attention.positions import Positions

PAGE = "docs/howto/write-your-own.md"


def check_part(name: str, part: Any, base: type[Any], example: str) -> None:
    """Raise TypeError unless a part is an object of its base class.

    name:    of the argument.
    example: an object of the class, as it is written.
    """
    if isinstance(part, base):
        return
    raise TypeError(f"{name} must be a {base.__name__}, such as {example}, got {describe_part(part)}")


def is_own(part: Any) -> bool:
    """Return True if the class of a part is not of this package."""
    return not type(part).__module__.startswith("regard.")


def check_pairs(part: Any, tensor: Any, positions: Positions, *, is_mask: bool) -> Tensor:
    """Return the tensor that `materialize` of a mask or a bias returned.

    Raises: TypeError or ValueError, with the class of the part, unless it is boolean (a mask) or numbers (a bias) and
            its last two axes broadcast to the queries and keys.
    """
    name = f"{type(part).__name__}.materialize"
    if not isinstance(tensor, Tensor) or (tensor.dtype == torch.bool) != is_mask:
        expected = "a boolean tensor, True = may attend" if is_mask else "a tensor of numbers"
        raise TypeError(f"{name} must return {expected}, got {_describe_result(tensor)}")
    sizes = positions.num_rows, positions.num_keys
    # torch.compile does not trace `in` for sizes that vary.
    if any(size != 1 and size != whole for size, whole in zip(tensor.shape[:-3:-1], sizes[::-1], strict=False)):  # noqa: PLR1714
        raise ValueError(
            f"{name} must return (..., {sizes[0]} queries or 1, {sizes[1]} keys or 1), got {tuple(tensor.shape)}"
        )
    return tensor


def check_result(part: Any, method: str, tensor: Any, *sizes: int) -> Tensor:
    """Return the tensor that a method of a score or a choice returned. Raises TypeError or ValueError, with its name.

    sizes: of all axes, or of the last ones.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{type(part).__name__}.{method} must return a tensor, got {_describe_result(tensor)}")
    if tuple(tensor.shape[-len(sizes) :]) != sizes:
        expected = f"(..., {', '.join(map(str, sizes))})"
        raise ValueError(f"{type(part).__name__}.{method} must return {expected}, got {tuple(tensor.shape)}")
    return tensor


def describe_part(part: Any) -> str:
    """Return what an argument is that is not the part it should be, and how to get one."""
    if isinstance(part, type):
        return f"the class {part.__name__}: write {part.__name__}(...)"
    return repr(part) if isinstance(part, str) else f"{type(part).__name__}; to write one, see {PAGE}"


def _describe_result(result: Any) -> str:
    return f"a tensor of {result.dtype}" if isinstance(result, Tensor) else f"{type(result).__name__}"
