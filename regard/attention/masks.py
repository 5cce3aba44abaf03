"""Masks: which key each query may attend to. True = may attend, everywhere in this library.

    causal()            query i of m sees key j of n  iff  j <= i + (n - m)     (aligned to the end: bottom right)
    padding(lengths)    every query of item b sees key j  iff  j < lengths[b]
    dense(tensor)       as the boolean tensor says

Masks are values that combine with `&`, `|` and `~`; a tensor is only made when a kernel asks for it. A float bias
that is added to scores is another thing and another argument. More masks are in regard.attention.patterns.

Leading axes line up from the left. A read has leading axes (batch,) or (batch, head), ...; a mask of fewer
leading axes serves all the later ones: `padding(lengths)` with lengths (batch,) serves (batch, query, key) and
(batch, head, query, key) alike, and `dense` of (batch, query, key) is the same for every head.

Source: lectures, C (masked multi-head attention); vaswani2017, section 3.2.3.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.attention.axes import Rule, can_look_at, check_fits, line_up, look_up
from regard.attention.picture import Picture, draw_mask, save_as_asked, side_by_side
from regard.attention.places import Places

Interval = tuple[Int[Tensor, "..."], Int[Tensor, "..."]]
"""First and past-the-last key of each query, each (leading axes ..., query or 1, 1)."""


class Mask(ABC):
    """Which key each query may attend to; `&` is both, `|` is either, `~` is what it hides."""

    @abstractmethod
    def see(self, places: Places) -> Bool[Tensor, "..."]:
        """Boolean tensor that broadcasts to (leading axes of this mask ..., queries, keys) of these places."""

    @abstractmethod
    def select(self, index: Int[Tensor, " rows"]) -> "Mask":
        """The mask of the rows `index` of the first leading axis (a mask without leading axes is unchanged)."""

    def interval(self, places: Places) -> Interval | None:
        """The keys each query sees as a range first <= j < last, for masks that are one; None for others.

        Kernels of ours run over the range alone. Bounds may lie outside 0 .. num_keys, and a range be empty.
        """
        return None

    def rule(self, places: Places) -> Rule:
        """The mask as a function of indices, for kernels that make their own tiles; by default a look-up."""
        return look_up(self.see(places))

    def may_have_closed_rows(self, places: Places) -> bool:
        """False only when every query is sure to see some key, so that kernels need not look."""
        return True

    def tensor(self, num_queries: int, num_keys: int, *, device: torch.device | None = None) -> Bool[Tensor, "..."]:
        """`see` for a read of so many queries and keys, the last query standing at the last key."""
        return self.see(Places(num_queries, num_keys, torch.device("cpu") if device is None else device))

    def picture(
        self, num_queries: int, num_keys: int, *, title: str | None = None, device: torch.device | None = None
    ) -> Picture:
        """Draw who sees whom: queries down, keys across, dark = may attend; notebooks show it, `save` writes it."""
        places = Places(num_queries, num_keys, torch.device("cpu") if device is None else device)
        return draw_mask(self.see, places, title=repr(self) if title is None else title)

    def __and__(self, other: "Mask") -> "Mask":
        return All(_checked(self), _checked(other))

    def __or__(self, other: "Mask") -> "Mask":
        return Any(_checked(self), _checked(other))

    def __invert__(self) -> "Mask":
        return Not(self)

    def __bool__(self) -> bool:
        raise TypeError("a mask has no truth value: combine masks with & and |, not with `and` and `or`")


@final
class Causal(Mask):
    """Query i of m sees key j of n iff j <= i + (n - m): the last query sees every key."""

    def see(self, places: Places) -> Bool[Tensor, "query key"]:
        """Places up to the query's own."""
        return places.key <= places.query

    def interval(self, places: Places) -> Interval | None:
        """0 <= j < place + 1."""
        if places.key_places is not None:
            return None
        last = places.query + 1
        return torch.zeros_like(last), last

    def rule(self, places: Places) -> Rule:
        """j <= i + start."""
        if places.key_places is not None:
            return look_up(self.see(places))
        first = places.first
        return lambda row, head, query, key: key <= query + first

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """Every row has the same mask."""
        return self

    def may_have_closed_rows(self, places: Places) -> bool:
        """Only queries that come before the first key see nothing."""
        return not places.aligned or places.num_queries > places.num_keys

    def __repr__(self) -> str:
        return "causal()"


@final
class Padding(Mask):
    """Item b has lengths[b] keys; what lies behind them is padding and is not seen."""

    def __init__(self, lengths: Int[Tensor, "..."]):
        self.lengths = lengths
        # Looked at once, here: on an accelerator every look would wait for the device.
        self._may_be_empty = not can_look_at(lengths) or bool((lengths < 1).any())

    def see(self, places: Places) -> Bool[Tensor, "... 1 key"]:
        """The same row for every query."""
        return (places.key < self.lengths.to(places.device).unsqueeze(-1)).unsqueeze(-2)

    def interval(self, places: Places) -> Interval | None:
        """0 <= j < length."""
        if places.key_places is not None:
            return None
        last = self.lengths.to(places.device)[..., None, None]
        return torch.zeros_like(last), last

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """The lengths of those rows."""
        if self.lengths.dim() == 0 or len(self.lengths) == 1:  # one for all rows
            return self
        return Padding(self.lengths.index_select(0, index.to(self.lengths.device)))

    def may_have_closed_rows(self, places: Places) -> bool:
        """Only items of no length have nothing to see."""
        return self._may_be_empty or places.num_keys == 0 or places.key_places is not None

    def __repr__(self) -> str:
        return f"padding({self.lengths.tolist()})"


@final
class Dense(Mask):
    """As the boolean tensor (..., query, key) says."""

    def __init__(self, allowed: Bool[Tensor, "... query key"]):
        self.allowed = allowed

    def see(self, places: Places) -> Bool[Tensor, "... query key"]:
        """The tensor itself, checked: axes of size 1 broadcast."""
        check_fits("dense mask", self.allowed, places)
        return places.rows_of(self.allowed)

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

    def see(self, places: Places) -> Bool[Tensor, "..."]:
        """Both."""
        return torch.logical_and(*line_up(self.left.see(places), self.right.see(places)))

    def interval(self, places: Places) -> Interval | None:
        """Where both ranges overlap."""
        left, right = self.left.interval(places), self.right.interval(places)
        if left is None or right is None:
            return None
        return torch.maximum(*line_up(left[0], right[0])), torch.minimum(*line_up(left[1], right[1]))

    def rule(self, places: Places) -> Rule:
        """Both."""
        left, right = self.left.rule(places), self.right.rule(places)
        return lambda *index: left(*index) & right(*index)

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

    def see(self, places: Places) -> Bool[Tensor, "..."]:
        """Either."""
        return torch.logical_or(*line_up(self.left.see(places), self.right.see(places)))

    def rule(self, places: Places) -> Rule:
        """Either."""
        left, right = self.left.rule(places), self.right.rule(places)
        return lambda *index: left(*index) | right(*index)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """Either of those rows."""
        return Any(self.left.select(index), self.right.select(index))

    def may_have_closed_rows(self, places: Places) -> bool:
        """One side that always shows a key is enough."""
        return self.left.may_have_closed_rows(places) and self.right.may_have_closed_rows(places)

    def __repr__(self) -> str:
        return f"({self.left!r} | {self.right!r})"


@final
class Not(Mask):
    """Seen when the mask hides it."""

    def __init__(self, hidden: Mask):
        self.hidden = hidden

    def see(self, places: Places) -> Bool[Tensor, "..."]:
        """What the other does not see."""
        return ~self.hidden.see(places)

    def rule(self, places: Places) -> Rule:
        """What the other does not see."""
        hidden = self.hidden.rule(places)
        return lambda *index: ~hidden(*index)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        """Of those rows."""
        return Not(self.hidden.select(index))

    def __repr__(self) -> str:
        return f"~{self.hidden!r}"


class Padded(NamedTuple):
    """Rows of unequal length in one tensor: row b holds lengths[b] items at its start, then padding."""

    items: Tensor
    """(batch, time, ...)"""
    lengths: Int[Tensor, " batch"]
    """Items of each row."""

    @property
    def mask(self) -> Mask | None:
        """Hides the padding when these items are the memory; None if there is none."""
        return padding(self.lengths)

    def select(self, index: Int[Tensor, " rows"]) -> "Padded":
        """Those rows."""
        return self._replace(items=self.items.index_select(0, index), lengths=self.lengths.index_select(0, index))

    def to(self, device: torch.device | str) -> "Padded":
        """The same on a device."""
        return self._replace(
            items=self.items.to(device, non_blocking=True), lengths=self.lengths.to(device, non_blocking=True)
        )


class Whole(Padded):
    """Rows that are all as long as the tensor (the patches of images), which spares reads a mask."""

    @classmethod
    def of(cls, items: Tensor) -> "Whole":
        """Every row as long as the tensor."""
        return cls(items, torch.full((items.shape[0],), items.shape[1], device=items.device))

    @property
    def mask(self) -> None:
        """There is nothing to hide."""
        return None


def causal() -> Mask:
    """Each query sees the keys up to its own place: j <= i + (n - m)."""
    return Causal()


def padding(lengths: Int[Tensor, "..."] | Sequence[int]) -> Mask:
    """Row b sees keys j < lengths[b]; lengths (batch,), not negative, are copied. A row of more has no padding.

    Raises: TypeError if lengths are not integers, ValueError if one is negative.
    """
    return Padding(lengths_of("lengths", lengths))


def dense(tensor: Tensor) -> Mask:
    """The boolean tensor (..., query, key) as a mask, True = may attend; axes of size 1 broadcast.

    The tensor is not copied: if it is changed in place, so is the mask.

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


def lengths_of(name: str, lengths: Tensor | Sequence[int]) -> Int[Tensor, "..."]:
    """Return a copy of the argument called `name` as a tensor of lengths.

    Raises: TypeError if they are not integers, ValueError if one is negative.
    """
    if not isinstance(lengths, Tensor):
        lengths = torch.tensor(lengths) if len(lengths) else torch.zeros(0, dtype=torch.int64)
    if lengths.dtype == torch.bool or lengths.is_floating_point() or lengths.is_complex():
        raise TypeError(f"{name} must be integers (items a row), but have dtype {lengths.dtype}")
    if can_look_at(lengths) and bool((lengths < 0).any()):
        raise ValueError(f"{name} must not be negative, but the smallest is {int(lengths.min())}")
    return lengths.clone()


def _checked(mask: Mask) -> Mask:
    if not isinstance(mask, Mask):
        raise TypeError(f"only masks combine with masks, but got {type(mask).__name__}; see regard.dense(tensor)")
    return mask


def split(mask: Mask | None, places: Places) -> tuple[Interval | None, Mask | None]:
    """A mask as the range of keys that a kernel runs over, and the rest that it must look at pair by pair."""
    if mask is None:
        return None, None
    interval = mask.interval(places)
    if interval is not None:
        return interval, None
    if not isinstance(mask, All):
        return None, mask
    (left, left_rest), (right, right_rest) = split(mask.left, places), split(mask.right, places)
    rest = left_rest if right_rest is None else right_rest if left_rest is None else All(left_rest, right_rest)
    if left is None or right is None:
        return (right if left is None else left), rest
    both = torch.maximum(*line_up(left[0], right[0])), torch.minimum(*line_up(left[1], right[1]))
    return both, rest


if __name__ == "__main__":
    _HOLES = dense(torch.arange(15).outer(torch.arange(15)) % 4 < 2)
    _SHOWN = (causal(), padding([9]), _HOLES, causal() & padding([9]), causal() | _HOLES, ~causal())
    save_as_asked(side_by_side([mask.picture(15, 15) for mask in _SHOWN]), "masks.svg")
