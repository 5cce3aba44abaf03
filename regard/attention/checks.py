"""What a read is given must fit together: each mistake is named before anything is computed."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.axes import align


class Tensors(NamedTuple):
    """What a read is given, by the names that callers know."""

    query: Tensor
    keys: Tensor
    values: Tensor


def lined_up(query: Tensor, memory: object) -> Tensors:
    """The query and the pair (keys, values), with the query's number of axes. Raises TypeError, ValueError."""
    if not isinstance(memory, tuple | list) or len(memory) != 2:
        raise TypeError(f"memory must be a memory or a pair (keys, values), but is {_kind_of(memory)}")
    tensors = Tensors(query, *memory)
    if all(isinstance(tensor, Tensor) and tensor.dim() == tensors[0].dim() >= 2 for tensor in tensors):
        return tensors
    return with_axes_of_query(*tensors)


def with_axes_of_query(query: Tensor, keys: Tensor, values: Tensor) -> Tensors:
    """The same with as many axes as the query has: a memory may leave out its last leading axes, a query may not.

    Raises: TypeError for what is not a tensor; ValueError for fewer than two axes, and for a query with fewer axes than
            its memory.
    """
    tensors = Tensors(query, keys, values)
    for name, tensor in tensors._asdict().items():
        check_axes(name, tensor)
    missing = max(keys.dim(), values.dim()) - query.dim()
    if missing > 0:
        memory = max(keys, values, key=Tensor.dim)
        ways = f"query[{', '.join(['None'] * missing)}]"
        if query.dim() > 2:
            last = "".join([f".unsqueeze({query.dim() - 2})"] * missing)
            ways = f"{ways} if its first leading axes are missing, query{last} if its last ones are"
        raise ValueError(
            f"query must have all leading axes of its memory, {tuple(memory.shape[:-2])}, "
            f"got shape {tuple(query.shape)}; write {ways}"
        )
    return Tensors(query, align(keys, query.dim()), align(values, query.dim()))


def check_axes(name: str, tensor: Tensor) -> None:
    """Raise TypeError unless it is a tensor, ValueError unless it has two axes or more."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, but is {type(tensor).__name__}")
    if tensor.dim() < 2:
        last = {"query": "query, dim", "keys": "key, dim", "values": "key, value_dim"}[name]
        raise ValueError(f"{name} must be (..., {last}), but has shape {tuple(tensor.shape)}")


def check_pair(query: Tensor, keys: Tensor, values: Tensor) -> None:
    """Raise TypeError or ValueError unless queries can read these keys and values.

    Rules: floating tensors of one dtype (autocast mixes them) on one device, of (..., query, dim), (..., key, key_dim)
    and (..., key, value_dim), where dim and key_dim are at least 1.
    """
    same = query.dtype == keys.dtype == values.dtype and query.device == keys.device == values.device
    if same and query.is_floating_point() and query.shape[-1] and keys.shape[-1]:
        return
    for name, tensor in (("query", query), ("keys", keys), ("values", values)):
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, but has dtype {tensor.dtype}")
        if tensor.dtype != query.dtype and not torch.is_autocast_enabled(query.device.type):
            raise TypeError(f"{name} must have the query's dtype {query.dtype}, but have {tensor.dtype}")
        if tensor.device != query.device:
            raise ValueError(f"{name} must be on the query's device {query.device}, but are on {tensor.device}")
        if tensor.shape[-1] == 0 and name != "values":
            raise ValueError(f"{name} must have one number or more each, but has shape {tuple(tensor.shape)}")


def leading_axes(query: Tensor, keys: Tensor, values: Tensor) -> tuple[int, ...]:
    """The leading axes of the read: those of all three, which have one number of axes, broadcast.

    Where there are two or more the last is that of heads, and the memory may have a divisor of the queries' heads.
    Raises: ValueError if they do not fit.
    """
    ours, last = query.shape[:-2], query.dim() - 3
    if ours == keys.shape[:-2] == values.shape[:-2]:
        return ours
    sizes = zip(ours, keys.shape[:-2], values.shape[:-2], strict=True)
    leading = tuple(next((size for size in axis if size != 1), 1) for axis in sizes)
    for name, tensor in (("keys", keys), ("values", values)):
        theirs = tensor.shape[:-2]
        for axis, (size, whole) in enumerate(zip(theirs, leading, strict=True)):
            grouped = axis == last > 0 and size > 0 and ours[axis] > size and ours[axis] % size == 0
            if size not in (1, whole) and not grouped:
                heads = ", or divide them if they are heads" if last > 0 else ""
                raise ValueError(
                    f"the leading axes of {name} must be the read's {leading} or 1{heads}, lined up from the left, "
                    f"but are {tuple(theirs)}"
                )
    return leading


def check_finite(name: str, tensor: Tensor) -> None:
    """Raise ValueError, with the first place, unless all numbers that a query may see are finite."""
    bad = ~tensor.detach().isfinite()
    if bool(bad.any()):
        where = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{name} must be finite where no mask hides them, but have {tensor[where].item()} at {where}, "
            f"and {int(bad.sum())} such numbers in all"
        )


def check_finite_bias(bias: Tensor, allowed: Tensor | None) -> None:
    """Raise ValueError, with the first place, unless the bias is finite where a query may see a key."""
    bad = ~bias.detach().isfinite()
    if allowed is not None:
        bad = bad & allowed
    if bool(bad.any()):
        where = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            "bias must be finite, or -inf to hide a pair, where no mask hides it, "
            f"but is {bias.expand(bad.shape)[where].item()} at {where}"
        )


def are_finite(*tensors: Tensor) -> bool:
    """Whether all numbers are finite: a sum a tensor, and a closer look at one whose sum is not finite."""
    for tensor in tensors:
        numbers = tensor.detach() if tensor.requires_grad else tensor
        total = numbers.sum(dtype=torch.float32) if numbers.dtype == torch.float16 else numbers.sum()
        if not math.isfinite(total.item()) and not bool(numbers.isfinite().all()):
            return False
    return True


def zeroed_where(tensors: Tensors, allowed: Tensor | None, leading: tuple[int, ...]) -> Tensors:
    """The same with zeros for what no query sees, and for queries that see nothing: a mask makes them absent.

    allowed: (..., query, key) with as many axes, broadcasting to the read; None: everything is seen.
    """
    if allowed is None:
        return tensors
    allowed = allowed.expand(*leading, tensors.query.shape[-2], tensors.keys.shape[-2])
    asked, seen = allowed.any(-1), allowed.any(-2)
    return Tensors(
        *(
            torch.where(_reduced(used, tensor).unsqueeze(-1), tensor, 0.0)
            for used, tensor in zip((asked, seen, seen), tensors, strict=True)
        )
    )


def _reduced(used: Tensor, tensor: Tensor) -> Tensor:
    """Whether anything uses an item, (..., item), of a tensor (..., item, dim) that serves several of the read."""
    for axis, size in enumerate(tensor.shape[:-2]):
        if used.shape[axis] != size:
            used = used.unflatten(axis, (size, -1)).any(axis + 1)
    return used


def _kind_of(memory: object) -> str:
    return f"{type(memory).__name__} of {len(memory)}" if isinstance(memory, tuple | list) else type(memory).__name__
