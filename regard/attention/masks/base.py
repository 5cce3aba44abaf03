"""Base class of attention masks, masks from tensors (`dense`), and combinations of masks.

True = may attend, everywhere, as in scaled_dot_product_attention.

Masks are immutable objects; a tensor is only created when a kernel needs it. A mask keeps it for
reads of the same sizes, so that the layers of a model share the tensor of a batch. A floating-point
bias that is added to scores is a different type and a different argument.

Leading axes are aligned from the left (regard.attention.axes): `padding(lengths)` with lengths
(batch,) fits (batch, query, key) and (batch, head, query, key).

Source: lectures, C.10 (masked multi-head attention); vaswani2017, section 3.2.3.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.axes import (
    Rule,
    align_pair,
    check_broadcasts,
    check_strided,
    make_lookup,
    select_rows,
)
from regard.attention.picture import (
    Picture,
    Pictured,
    draw_tensor,
    shown_sizes,
    shown_sizes_of_both,
)
from regard.attention.positions import Positions
from regard.compat.torch import is_eager, is_transformed

ResultT = TypeVar("ResultT")
MAX_KEPT = 1 << 24
"""Largest number of elements of a tensor (query, key) that a mask keeps."""
Interval = tuple[Int[Tensor, "..."], Int[Tensor, "..."]]
"""Range first <= j < last of each query; each bound is (leading axes ..., query or 1, 1)."""


class Mask(Pictured, ABC):
    """Base class of attention masks; combine masks with `&` (both), `|` (either) and `~` (not).

    Masks are immutable: `materialize` is a function of the positions, whose last result is kept.
    """

    includes_first_key: bool = False
    """True if queries that attend to any key attend to key 0."""
    band: tuple[int, int] | None = None
    """Numbers of keys before and after its own that a query attends to at most; None: no limit."""

    @abstractmethod
    def materialize(self, positions: Positions) -> Bool[Tensor, "..."]:
        """Return a boolean tensor that broadcasts to (leading axes ..., queries, keys)."""

    @abstractmethod
    def select(self, index: Int[Tensor, " rows"]) -> "Mask":
        """Select the rows `index` of the first leading axis, if there is one."""

    def interval(self, positions: Positions) -> Interval | None:
        """Return the keys of each query as a range first <= j < last, or None if they are none.

        For keys in their order (no `key_positions`). Our kernels then only process the range.
        Bounds may lie outside 0 .. num_keys, and a range may be empty.
        """
        return None

    def rule(self, positions: Positions) -> Rule:
        """Return the mask as a function of indices, for kernels that tile by themselves.

        For keys in their order (no `key_positions`).
        """
        return make_lookup(materialize_mask(self, positions))

    def may_have_fully_masked_rows(self, positions: Positions) -> bool:
        """Return False only if no row can be fully masked, so that kernels need no check."""
        return True

    def tensor(
        self, num_queries: int, num_keys: int, *, device: torch.device | str = "cpu"
    ) -> Bool[Tensor, "..."]:
        """Return the mask as a tensor, for a read whose last query is at the last key."""
        positions = Positions(num_queries, num_keys, torch.device(device))
        return materialize_mask(self, positions).clone()  # the mask keeps its own

    def picture(
        self,
        num_queries: int,
        num_keys: int,
        *,
        title: str | None = None,
        device: torch.device | str = "cpu",
    ) -> Picture:
        """Draw the mask: rows are queries, columns are keys, dark = may attend."""
        positions = Positions(num_queries, num_keys, torch.device(device))
        tensor = self.materialize(positions.tile(0, num_queries))
        title = repr(self) if title is None else title
        return draw_tensor(tensor, positions, title=title, is_mask=True)

    def __and__(self, other: "Mask") -> "Mask":
        return And(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: "Mask") -> "Mask":
        return Or(self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> "Mask":
        return Not(self)

    def __bool__(self) -> bool:
        raise TypeError("a mask has no truth value: combine masks with & and |, not `and` and `or`")


class PositionMask(Mask):
    """Base class of masks of positions alone, which are the same for all rows."""

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        return self


def _keep(function: Callable[..., ResultT]) -> Callable[..., ResultT]:
    """Let a mask keep the last result of a function of it, for reads of the same sizes."""

    def call(mask: Mask, positions: Positions, *dtype: torch.dtype) -> ResultT:
        eager = is_eager()
        is_traced = not eager and (torch.compiler.is_compiling() or is_transformed())
        if is_traced or not positions.is_aligned or positions.rows is not None:
            return function(mask, positions, *dtype)
        kept, name = vars(mask).setdefault("_kept", {}), (function.__name__, *dtype)
        # Inference tensors could not be used by a later read with gradients.
        # A CUDA graph fills its tensors when it is replayed, and needs its inputs to stay.
        captured = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
        key = *positions, torch.is_inference_mode_enabled(), eager, captured
        last = kept.get(name)
        if last is not None and last[0] == key:
            return last[1]
        result = function(mask, positions, *dtype)
        tensor = result[0] if isinstance(result, tuple) else result
        # Not one of FakeTensorMode, nor a large one of positions alone: `causal()` lives as long as
        # the process, and a mask of rows as long as their batch.
        if type(tensor) is Tensor and (tensor.dim() > 2 or tensor.numel() <= MAX_KEPT):
            kept[name] = key, result
        return result

    return call


@_keep
def materialize_mask(mask: Mask, positions: Positions) -> Bool[Tensor, "..."]:
    """Return the tensor of a mask, which must be boolean."""
    allowed = mask.materialize(positions)
    if allowed.dtype != torch.bool:
        raise TypeError(f"{type(mask).__name__}.materialize must be boolean, got {allowed.dtype}")
    return allowed


@_keep
def additive_mask(
    mask: Mask, positions: Positions, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Return 0 for allowed pairs and minus infinity for others, and the fully masked rows, if any.

    Those rows are 0: a softmax needs a key.
    """
    allowed, fully_masked = materialize_mask(mask, positions), None
    if mask.may_have_fully_masked_rows(positions):
        fully_masked = ~allowed.any(-1, keepdim=True)
        allowed = allowed | fully_masked
    added = torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, float("-inf"))
    return _align_rows(added), fully_masked


@_keep
def banded_mask(
    mask: Mask, positions: Positions, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Return `additive_mask` of the pairs in blocks of queries, and of the keys within its band.

    Shapes: (..., block, query, key) and (..., query, 1). In block b of n queries query r is at
    position b n + r, key c at b n + c - before; n is `block_size(mask.band)`.
    """
    bounds, band, num_keys = mask.interval(positions), mask.band, positions.num_keys
    assert bounds is not None
    assert band is not None
    size, span = block_size(band), block_size(band) + sum(band)
    count = -(-num_keys // size)
    shape, after_last = (num_keys, 1), (0, 0, 0, count * size - num_keys)
    first, last = (
        pad(bound.expand(*bound.shape[:-2], *shape), after_last).unflatten(-2, (count, size))
        for bound in bounds
    )
    blocks = torch.arange(count, device=positions.device)[:, None, None] * size
    key = blocks + torch.arange(-band[0], span - band[0], device=positions.device)
    allowed = (key >= first.clamp(min=0)) & (key < last.clamp(max=num_keys))
    fully_masked = ~allowed.any(-1, keepdim=True)
    allowed = allowed | fully_masked
    added = torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, float("-inf"))
    added = _align_rows(added)
    if not mask.may_have_fully_masked_rows(positions):
        return added, None
    return added, fully_masked.flatten(-3, -2)[..., :num_keys, :]


def _align_rows(added: Tensor) -> Tensor:
    """Let rows on a GPU begin at multiples of 8: else torch would copy the mask at each read."""
    if added.device.type == "cpu":
        return added
    return pad(added, (0, -added.shape[-1] % 8))[..., : added.shape[-1]]


def block_size(band: tuple[int, int]) -> int:
    """Return the number of queries in a block of `banded_mask`."""
    return max(64, sum(band) // 2)


@final
class Dense(Mask):
    """Mask from a boolean tensor (..., query, key)."""

    def __init__(self, allowed: Bool[Tensor, "... query key"]):
        self.allowed = allowed

    def materialize(self, positions: Positions) -> Bool[Tensor, "... query key"]:
        check_broadcasts("dense mask", self.allowed, positions)
        return positions.rows_of(self.allowed)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        return Dense(select_rows(self.allowed, index, 2))

    def _shown_sizes(self) -> tuple[int, int]:
        return shown_sizes(self.allowed)

    def __repr__(self) -> str:
        return f"dense({tuple(self.allowed.shape)})"


class _Pair(Mask):
    def __init__(self, left: Mask, right: Mask):
        self.left, self.right = left, right
        self.includes_first_key = left.includes_first_key and right.includes_first_key

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        return type(self)(self.left.select(index), self.right.select(index))

    def _tensors(self, positions: Positions) -> tuple[Tensor, Tensor]:
        left = materialize_mask(self.left, positions)
        return align_pair(left, materialize_mask(self.right, positions))

    def _shown_sizes(self) -> tuple[int, int]:
        return shown_sizes_of_both(self.left._shown_sizes(), self.right._shown_sizes())


@final
class And(_Pair):
    """Intersection of two masks: allowed by both."""

    def __init__(self, left: Mask, right: Mask):
        super().__init__(left, right)
        bands = [band for band in (left.band, right.band) if band is not None]
        if bands:
            self.band = min(before for before, _ in bands), min(after for _, after in bands)

    def materialize(self, positions: Positions) -> Bool[Tensor, "..."]:
        return torch.logical_and(*self._tensors(positions))

    def interval(self, positions: Positions) -> Interval | None:
        left, right = self.left.interval(positions), self.right.interval(positions)
        return None if left is None or right is None else _intersect_intervals(left, right)

    def rule(self, positions: Positions) -> Rule:
        left, right = self.left.rule(positions), self.right.rule(positions)
        return lambda *index: left(*index) & right(*index)

    def may_have_fully_masked_rows(self, positions: Positions) -> bool:
        left = self.left.may_have_fully_masked_rows(positions)
        right = self.right.may_have_fully_masked_rows(positions)
        return left or right or not self.includes_first_key

    def __repr__(self) -> str:
        return f"({self.left!r} & {self.right!r})"


@final
class Or(_Pair):
    """Union of two masks: allowed by either."""

    def materialize(self, positions: Positions) -> Bool[Tensor, "..."]:
        return torch.logical_or(*self._tensors(positions))

    def rule(self, positions: Positions) -> Rule:
        left, right = self.left.rule(positions), self.right.rule(positions)
        return lambda *index: left(*index) | right(*index)

    def may_have_fully_masked_rows(self, positions: Positions) -> bool:
        left = self.left.may_have_fully_masked_rows(positions)
        return left and self.right.may_have_fully_masked_rows(positions)

    def __repr__(self) -> str:
        return f"({self.left!r} | {self.right!r})"


@final
class Not(Mask):
    """Complement of a mask."""

    def __init__(self, hidden: Mask):
        self.hidden = hidden

    def materialize(self, positions: Positions) -> Bool[Tensor, "..."]:
        return ~materialize_mask(self.hidden, positions)

    def rule(self, positions: Positions) -> Rule:
        hidden = self.hidden.rule(positions)
        return lambda *index: ~hidden(*index)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        return Not(self.hidden.select(index))

    def _shown_sizes(self) -> tuple[int, int]:
        return self.hidden._shown_sizes()

    def __repr__(self) -> str:
        return f"~{self.hidden!r}"


def dense(tensor: Tensor) -> Mask:
    """Mask from a boolean tensor (..., query, key), True = may attend; axes of size 1 broadcast.

    The tensor is copied.
    Raises: TypeError if the tensor is not boolean, ValueError if it has fewer than two axes.
    """
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.bool:
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"a dense mask must be boolean (True = may attend), got {kind}")
    check_strided("the tensor of a dense mask", tensor)
    if tensor.dim() < 2:
        raise ValueError(f"a dense mask must be (..., query, key), got shape {tuple(tensor.shape)}")
    return Dense(tensor.clone())


def intersect(left: Mask | None, right: Mask | None) -> Mask | None:
    """Return the intersection of two masks; None allows everything."""
    if left is None or right is None:
        return right if left is None else left
    return And(left, right)


def split_interval(mask: Mask | None, positions: Positions) -> tuple[Interval | None, Mask | None]:
    """Split a mask into a range of keys and the rest, which a kernel must check pair by pair."""
    if mask is None or positions.key_positions is not None:
        return None, mask
    interval = mask.interval(positions)
    if interval is not None:
        return interval, None
    if not isinstance(mask, And):
        return None, mask
    left, left_rest = split_interval(mask.left, positions)
    right, right_rest = split_interval(mask.right, positions)
    rest = intersect(left_rest, right_rest)
    if left is None or right is None:
        return (right if left is None else left), rest
    return _intersect_intervals(left, right), rest


def _intersect_intervals(left: Interval, right: Interval) -> Interval:
    first, last = align_pair(left[0], right[0]), align_pair(left[1], right[1])
    return torch.maximum(*first), torch.minimum(*last)


def may_lack_own_key(positions: Positions) -> bool:
    """Return True if a query may have no key at its own position."""
    return not positions.is_aligned or positions.num_queries > positions.num_keys
