"""Checks of the parts of a read that a caller gives: each is of its base class, and returns what
fits the read.

A tensor of another shape might broadcast, and a floating-point mask might be taken for a boolean
one.
"""

from functools import partial
from inspect import isfunction
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.positions import Positions

PAGE = "docs/howto/write-your-own.md"


def check_part(name: str, part: Any, base: type[Any], example: str) -> None:
    """Raise TypeError unless a part is an object of its base class.

    name:    of the argument.
    example: an object of the class, as it is written.
    """
    if isinstance(part, base):
        return
    raise TypeError(
        f"{name} must be a {base.__name__}, such as {example}, got {describe_part(part)}"
    )


def is_own(part: Any) -> bool:
    """Return True if the class of a part, or of one that it holds, is not of this package."""
    parts = part.modules() if isinstance(part, nn.Module) else (part,)
    return not all(type(each).__module__.startswith(("regard.", "torch.")) for each in parts)


def check_pairs(part: Any, tensor: Any, positions: Positions, *, is_mask: bool) -> Tensor:
    """Return the tensor that `materialize` of a mask or a bias returned.

    Raises: TypeError or ValueError, with the class of the part, unless it is boolean (a mask) or
            numbers (a bias) and its last two axes broadcast to the queries and keys.
    """
    name = f"{type(part).__name__}.materialize"
    if not isinstance(tensor, Tensor) or (tensor.dtype == torch.bool) != is_mask:
        expected = "a boolean tensor, True = may attend" if is_mask else "a tensor of numbers"
        raise TypeError(f"{name} must return {expected}, got {describe_result(tensor)}")
    sizes = positions.num_rows, positions.num_keys
    # torch.compile does not trace `in` for sizes that vary.
    if any(
        size != 1 and size != whole  # noqa: PLR1714
        for size, whole in zip(tensor.shape[:-3:-1], sizes[::-1], strict=False)
    ):
        raise ValueError(
            f"{name} must return (..., {sizes[0]} queries or 1, {sizes[1]} keys or 1), got "
            f"{tuple(tensor.shape)}"
        )
    return tensor


def check_finite_bias(name: str, bias: Tensor, allowed: Tensor | None) -> None:
    """Raise ValueError, with the first index, unless the bias of every allowed pair is finite."""
    bad = ~bias.detach().isfinite()
    if allowed is not None:
        bad = bad & allowed
    if bool(bad.any()):
        index = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{name} must be finite, or -inf to hide a pair, where not masked, "
            f"got {bias.expand(bad.shape)[index].item()} at {index}"
        )


def check_result(part: Any, method: str, tensor: Any, *sizes: int) -> Tensor:
    """Return the tensor that a method of a part returned. Raises TypeError or ValueError, with its
    name.

    sizes: of all axes, or of the last ones.
    """
    if not isinstance(tensor, Tensor) or tensor.dtype == torch.bool:
        raise TypeError(
            f"{type(part).__name__}.{method} must return a tensor of numbers, got "
            f"{describe_result(tensor)}"
        )
    if tuple(tensor.shape[-len(sizes) :]) != sizes:
        expected = f"(..., {', '.join(map(str, sizes))})"
        raise ValueError(
            f"{type(part).__name__}.{method} must return {expected}, got {tuple(tensor.shape)}"
        )
    return tensor


def check_same_size(part: Any, tensor: Any, items: Tensor) -> Tensor:
    """Return the tensor that a layer or a function returned for these items, which must be of their
    shape.

    part: a module, or a `partial` of one.
    Raises: TypeError or ValueError, with the class of the module.
    """
    if isinstance(tensor, Tensor) and tensor.shape == items.shape:
        return tensor
    part = part.func if isinstance(part, partial) else part
    name = (
        type(part).__name__
        if isinstance(part, nn.Module)
        else getattr(part, "__name__", "the function")
    )
    expected = f"{name} must return a tensor of the shape of its items, {tuple(items.shape)}"
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{expected}, got {describe_result(tensor)}")
    raise ValueError(f"{expected}, got {tuple(tensor.shape)}")


def describe_part(part: Any) -> str:
    """Return what an argument is that is not the part it should be, and how to get one."""
    if isinstance(part, type):
        return f"the class {part.__name__}: write {part.__name__}(...)"
    if isfunction(part) and part.__module__.startswith("regard."):
        return f"the function {part.__name__}: write {part.__name__}(...)"
    return (
        repr(part) if isinstance(part, str) else f"{type(part).__name__}; to write one, see {PAGE}"
    )


def describe_result(result: Any) -> str:
    """Return the kind of what a part returned."""
    return (
        f"a tensor of {result.dtype}" if isinstance(result, Tensor) else f"{type(result).__name__}"
    )
