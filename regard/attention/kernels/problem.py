"""What a kernel is given: mapped queries and keys, values, and the rules of the read."""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.axes import align
from regard.attention.biases import Bias
from regard.attention.choices import Choice
from regard.attention.masks import Interval, Mask, split
from regard.attention.memory import Prepared
from regard.attention.places import Places
from regard.attention.scores import Form, Score


class Problem(NamedTuple):
    """One read, ready to compute: queries and keys are already mapped by the score, and all have as many axes.

    Leading axes line up; those of queries and keys, broadcast, are those of the read. The axis before the last two is
    that of heads, if there are at least two leading axes; the memory may have fewer heads than the queries, of which
    then head h reads the memory's head h // group (grouped queries).
    """

    query: Tensor
    """(..., [head,] query, dim)"""
    keys: Tensor
    """(..., [head,] key, dim)"""
    values: Tensor
    """(..., [head,] key, value_dim)"""
    score: Score
    form: Form | None
    """What the score computes, if fused kernels may know it."""
    choose: Choice
    mask: Mask | None
    bias: Bias | None
    places: Places
    asked: Tensor
    """The queries before the score mapped them, for biases that depend on them."""
    prepared: Prepared | None = None
    """Where a kernel may keep what it made of these keys; None if they are not kept for further reads."""

    @property
    def num_axes(self) -> int:
        """Axes of the weights."""
        return self.query.dim()

    @property
    def leading(self) -> tuple[int, ...]:
        """Leading axes of the weights, and of what is read."""
        ours, theirs = self.query.shape[:-2], self.keys.shape[:-2]
        if ours == theirs:
            return ours
        # Where heads are grouped, the queries have more of them.
        return tuple(k if q == 1 else q for q, k in zip(ours, theirs, strict=True))

    @property
    def is_empty(self) -> bool:
        """Whether there is no query, no key or no row: vectors have one number or more."""
        return self.query.numel() == 0 or self.keys.numel() == 0

    def zeros(self, size: int) -> Tensor:
        """Rows (..., query, size) of an empty read, whose gradients are zeros."""
        ends = sum(tensor[..., :0].sum() for tensor in (self.query, self.keys, self.values))
        return self.values.new_zeros(*self.leading, self.query.shape[-2], size) + ends

    @property
    def group(self) -> int:
        """How many query heads read each head of the memory; 1 unless queries are grouped."""
        if self.query.dim() < 4 or self.keys.shape[-3] in (1, self.query.shape[-3]):
            return 1
        return self.query.shape[-3] // self.keys.shape[-3] or 1

    def spread(self, leading: tuple[int, ...]) -> "Problem":
        """The same read with queries and keys that alone tell its leading axes, and as many heads of keys as values."""
        query, keys, values = self.query, self.keys, self.values
        if query.shape[:-2] == leading and keys.shape[:-2] == values.shape[:-2]:
            return self
        if self.leading != leading:
            query = query.expand(*leading, *query.shape[-2:])
        if len(leading) < 2 or keys.shape[-3] == values.shape[-3]:
            return self._replace(query=query)
        keys, values = (
            x if x.shape[-3] in (1, leading[-1]) else _repeat(x, leading[-1] // x.shape[-3]) for x in (keys, values)
        )
        return self._replace(query=query, keys=keys, values=values, prepared=None)

    def ungrouped(self) -> "Problem":
        """The same read with a head of the memory for every head of queries."""
        if self.group == 1:
            return self
        return self._replace(keys=_repeat(self.keys, self.group), values=_repeat(self.values, self.group))

    def tile(self, first: int, last: int) -> "Problem":
        """The queries first .. last - 1 alone."""
        return self._replace(
            query=self.query[..., first:last, :],
            choose=self.choose.tile(first, last),
            asked=self.asked[..., first:last, :],
            places=self.places.tile(first, last),
        )

    def allowed(self, bias: Tensor | None = None) -> Tensor | None:
        """Which pairs may be read, broadcasting to the weights: the mask, less what `bias` closes with -inf."""
        open_by_bias = None if bias is None else bias != float("-inf")
        if self.mask is None:
            return open_by_bias
        allowed = self._lined_up("mask", self.mask.see(self.places))
        return allowed if open_by_bias is None else allowed & open_by_bias

    def added(self) -> Tensor | None:
        """The bias, broadcasting to the weights, with -inf where it closes a pair."""
        if self.bias is None:
            return None
        return self._lined_up("bias", self.bias.see(self.asked, self.places))

    def split_mask(self) -> tuple[Interval | None, Tensor | None]:
        """The mask as a range of keys a query, and the rest of it as a tensor; both broadcast to the weights."""
        interval, rest = split(self.mask, self.places)
        if interval is not None:
            interval = self._lined_up("mask", interval[0]), self._lined_up("mask", interval[1])
        return interval, None if rest is None else self._lined_up("mask", rest.see(self.places))

    def diagonals(self) -> Tensor | None:
        """The bias as one number a diagonal, (..., diagonal), if it is that and the read is whole; see `Bias`."""
        places = self.places
        if self.bias is None or not places.aligned or places.rows is not None:
            return None
        diagonals = self.bias.diagonals(places, self.query.dtype)
        return None if diagonals is None else self._lined_up("bias", diagonals.unsqueeze(-2)).squeeze(-2)

    def may_have_closed_rows(self) -> bool:
        """False only when every query is sure to see some key."""
        if self.keys.shape[-2] == 0 or self.bias is not None:
            return True
        return self.mask is not None and self.mask.may_have_closed_rows(self.places)

    def _lined_up(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor with as many axes as the weights, checked to broadcast to them."""
        tensor = align(tensor, self.num_axes)
        leading = tuple(self.leading)
        if any(size not in (1, whole) for size, whole in zip(tensor.shape[:-2], leading, strict=True)):
            raise ValueError(
                f"the leading axes of {name} must be those of the read, {leading}, or 1, "
                f"but are {tuple(tensor.shape[:-2])}"
            )
        return tensor


def _repeat(tensor: Tensor, group: int) -> Tensor:
    return torch.repeat_interleave(tensor, group, -3)
