"""Masks: which key each query may attend to. True = may attend, everywhere in this library.

    causal()            query i of m sees key j of n  iff  j <= i + (n - m)     (aligned to the end: bottom right)
    padding(lengths)    every query of item b sees key j  iff  j < lengths[b]
    dense(tensor)       as the boolean tensor says

Masks are values that combine with `&` and `|`; a tensor is only made when a kernel asks for it. A float bias
that is added to scores is another thing and another argument.

Leading axes line up from the left. A read has leading axes (batch,) or (batch, head), ...; a mask of fewer
leading axes serves all the later ones: `padding(lengths)` with lengths (batch,) serves (batch, query, key) and
(batch, head, query, key) alike, and `dense` of (batch, query, key) is the same for every head.

Source: lectures, C (masked multi-head attention); vaswani2017, section 3.2.3.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

__all__ = ["All", "Any", "Causal", "Dense", "Mask", "Padded", "Padding", "align", "causal", "dense", "padding"]


class Mask(ABC):
    """Which key each query may attend to; `&` is both, `|` is either."""

    @abstractmethod
    def tensor(self, num_queries: int, num_keys: int, *, device: torch.device) -> Bool[Tensor, "..."]:
        """Boolean tensor that broadcasts to (leading axes of this mask ..., num_queries, num_keys)."""

    @abstractmethod
    def select(self, index: Int[Tensor, " rows"]) -> "Mask":
        """The mask of the rows `index` of the first leading axis (a mask without leading axes is unchanged)."""

    def may_have_closed_rows(self, num_queries: int, num_keys: int) -> bool:
        """False only when every query is sure to see some key, so that kernels need not look."""
        return True

    def __and__(self, other: "Mask") -> "Mask":
        return All(_checked(self), _checked(other))

    def __or__(self, other: "Mask") -> "Mask":
        return Any(_checked(self), _checked(other))

    def __bool__(self) -> bool:
        raise TypeError("a mask has no truth value: combine masks with & and |, not with `and` and `or`")


@final
class Causal(Mask):
    """Query i of m sees key j of n iff j <= i + (n - m): the last query sees every key."""

    def tensor(self, num_queries: int, num_keys: int, *, device: torch.device) -> Bool[Tensor, "query key"]:
        """Lower triangle that ends in the bottom right corner."""
        everything = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
        return everything.tril(num_keys - num_queries)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """Every row has the same mask."""
        return self

    def may_have_closed_rows(self, num_queries: int, num_keys: int) -> bool:
        """Only queries that come before the first key see nothing."""
        return num_queries > num_keys

    def __repr__(self) -> str:
        return "causal()"


@final
class Padding(Mask):
    """Item b has lengths[b] keys; what lies behind them is padding and is not seen."""

    def __init__(self, lengths: Int[Tensor, "..."]):
        self.lengths = lengths
        # Looked at once, here: on an accelerator every look would wait for the device.
        self._may_be_empty = lengths.device.type != "cpu" or bool((lengths < 1).any())

    def tensor(self, num_queries: int, num_keys: int, *, device: torch.device) -> Bool[Tensor, "... 1 key"]:
        """The same row for every query."""
        position = torch.arange(num_keys, device=device)
        return (position < self.lengths.to(device).unsqueeze(-1)).unsqueeze(-2)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """The lengths of those rows."""
        return Padding(self.lengths.index_select(0, index))

    def may_have_closed_rows(self, num_queries: int, num_keys: int) -> bool:
        """Only items of no length have nothing to see."""
        return self._may_be_empty or num_keys == 0

    def __repr__(self) -> str:
        return f"padding({self.lengths.tolist()})"


@final
class Dense(Mask):
    """As the boolean tensor (..., query, key) says."""

    def __init__(self, allowed: Bool[Tensor, "... query key"]):
        self.allowed = allowed

    def tensor(self, num_queries: int, num_keys: int, *, device: torch.device) -> Bool[Tensor, "... query key"]:
        """The tensor itself, checked: axes of size 1 broadcast."""
        rows, columns = self.allowed.shape[-2:]
        if rows not in (1, num_queries) or columns not in (1, num_keys):
            raise ValueError(
                f"dense mask must be (..., {num_queries} queries or 1, {num_keys} keys or 1), "
                f"but is {tuple(self.allowed.shape)}"
            )
        return self.allowed.to(device)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """Those rows, when the mask has a leading axis that tells rows apart."""
        if self.allowed.dim() < 3 or self.allowed.shape[0] == 1:
            return self
        return Dense(self.allowed.index_select(0, index))

    def __repr__(self) -> str:
        return f"dense({tuple(self.allowed.shape)})"


@final
class All(Mask):
    """Seen when both masks let it be seen."""

    def __init__(self, left: Mask, right: Mask):
        self.left, self.right = left, right

    def tensor(self, num_queries: int, num_keys: int, *, device: torch.device) -> Bool[Tensor, "..."]:
        """Both."""
        return _lined_up(torch.logical_and, (self.left, self.right), (num_queries, num_keys), device)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """Both of those rows."""
        return All(self.left.select(index), self.right.select(index))

    def __repr__(self) -> str:
        return f"({self.left!r} & {self.right!r})"


@final
class Any(Mask):
    """Seen when either mask lets it be seen."""

    def __init__(self, left: Mask, right: Mask):
        self.left, self.right = left, right

    def tensor(self, num_queries: int, num_keys: int, *, device: torch.device) -> Bool[Tensor, "..."]:
        """Either."""
        return _lined_up(torch.logical_or, (self.left, self.right), (num_queries, num_keys), device)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """Either of those rows."""
        return Any(self.left.select(index), self.right.select(index))

    def may_have_closed_rows(self, num_queries: int, num_keys: int) -> bool:
        """One side that always shows a key is enough."""
        sides = (self.left, self.right)
        return all(side.may_have_closed_rows(num_queries, num_keys) for side in sides)

    def __repr__(self) -> str:
        return f"({self.left!r} | {self.right!r})"


class Padded(NamedTuple):
    """Rows of unequal length in one tensor: row b holds lengths[b] items at its start, then padding."""

    items: Tensor
    """(batch, time, ...)"""
    lengths: Int[Tensor, " batch"]
    """Items of each row."""

    @property
    def mask(self) -> Mask:
        """Hides the padding when these items are the memory."""
        return padding(self.lengths)

    def select(self, index: Int[Tensor, " rows"]) -> "Padded":
        """Those rows."""
        return Padded(self.items.index_select(0, index), self.lengths.index_select(0, index))


def causal() -> Mask:
    """Each query sees the keys up to its own place: j <= i + (n - m)."""
    return Causal()


def padding(lengths: Int[Tensor, "..."] | Sequence[int]) -> Mask:
    """Row b sees keys j < lengths[b]; lengths (batch,), not negative.

    Raises: TypeError if lengths are not integers, ValueError if one is negative.
    """
    if not isinstance(lengths, Tensor):
        lengths = torch.tensor(list(lengths), dtype=torch.int64)
    if lengths.dtype == torch.bool or lengths.is_floating_point():
        raise TypeError(f"lengths must be integers (items a row), but have dtype {lengths.dtype}")
    if lengths.device.type == "cpu" and bool((lengths < 0).any()):
        raise ValueError(f"lengths must not be negative, but the smallest is {int(lengths.min())}")
    return Padding(lengths)


def dense(tensor: Tensor) -> Mask:
    """The boolean tensor (..., query, key) as a mask, True = may attend; axes of size 1 broadcast.

    Raises: TypeError if the tensor is not boolean, ValueError if it has fewer than two axes.
    """
    if tensor.dtype != torch.bool:
        raise TypeError(
            f"a dense mask must be boolean, True = may attend, but has dtype {tensor.dtype}; "
            "numbers that are added to scores are a bias: pass them as bias="
        )
    if tensor.dim() < 2:
        raise ValueError(f"a dense mask must be (..., query, key), but has shape {tuple(tensor.shape)}")
    return Dense(tensor)


def _checked(mask: Mask) -> Mask:
    if not isinstance(mask, Mask):
        raise TypeError(f"only masks combine with masks, but got {type(mask).__name__}; see regard.dense(tensor)")
    return mask


def _lined_up(
    combine: Callable[[Tensor, Tensor], Tensor], sides: tuple[Mask, Mask], size: tuple[int, int], device: torch.device
) -> Tensor:
    """Give both the same number of axes, leading axes from the left, then combine."""
    left, right = (side.tensor(*size, device=device) for side in sides)
    num_axes = max(left.dim(), right.dim())
    return combine(align(left, num_axes), align(right, num_axes))


def align(tensor: Tensor, num_axes: int) -> Tensor:
    """Insert axes of size 1 before the last two, so that leading axes line up from the left."""
    missing = num_axes - tensor.dim()
    if missing < 0:
        raise ValueError(f"mask or bias has {tensor.dim()} axes, but the read has only {num_axes}")
    leading = tensor.shape[:-2]
    return tensor.reshape(*leading, *(1,) * missing, *tensor.shape[-2:])
