"""Some rows, heads and queries of a read, as a smaller read: nothing else of it is computed, and little is copied.

    weights(cut(read))[r, h, i, :] = weights(read)[rows[r], heads[h], queries[i], :]

What cannot be cut is computed for all, and its weights are cut: the heads of a score that has parameters for each
and is no inner product.
"""

import itertools
import math
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.axes import align
from regard.attention.biases import Bias, Given, Sum
from regard.attention.choices import Choice, Soft
from regard.attention.kernels import reference
from regard.attention.kernels.problem import Problem
from regard.attention.masks import All, Any, Dense, Mask, Not
from regard.attention.places import Places
from regard.attention.scores import InnerProduct

HEAD, QUERY = -3, -2
"""Axes of weights, if there are so many."""

Numbers = Sequence[int]


def sizes_of(problem: Problem) -> tuple[int, ...]:
    """The shape of the weights: leading axes of queries and keys, broadcast (grouped heads are the queries')."""
    query, keys = problem.query.shape, problem.keys.shape
    missing = len(query) - len(keys)
    pairs = zip((*(1,) * -missing, *query[:-2]), (*(1,) * missing, *keys[:-2]), strict=True)
    return *(theirs if ours == 1 else ours for ours, theirs in pairs), query[-2], keys[-2]


def take(tensor: Tensor, axis: int, numbers: Numbers | None) -> Tensor:
    """Those entries of an axis, counted from the end; all of a tensor that has no such axis, or one of size 1.

    Neighbors are a view.
    """
    if numbers is None or tensor.dim() < -axis or tensor.shape[axis] == 1:
        return tensor
    if list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return tensor.narrow(axis, numbers[0], len(numbers))
    return tensor.index_select(axis, torch.tensor(numbers, device=tensor.device))


class Cut:
    """A read of which weights are asked for rows, heads and queries at a time; None is all rows, all heads."""

    def __init__(self, problem: Problem):
        self.sizes = sizes_of(problem)
        self._whole = problem._replace(values=problem.keys[..., :0])  # weights need none
        self._last: tuple[Numbers | None, Numbers | None, Problem] = None, None, self._whole

    @property
    def cuts_heads(self) -> bool:
        """Whether heads that are not asked for are left out; False where there is but one kind."""
        same_for_all = self._whole.score.num_heads is None or isinstance(self._whole.form, InnerProduct)
        return len(self.sizes) > 3 and same_for_all

    @property
    def leaves_heads_out(self) -> bool:
        """Whether asking for fewer heads needs less of everything: a bias is asked for all heads in any case."""
        return self.cuts_heads and self._whole.bias is None

    def bytes_a_pair(self, num_heads: int) -> int:
        """What the largest tensor needs for each weight, when `num_heads` of the heads are asked for.

        A score that is no inner product is taken to add up all queries and keys, which is the worst.
        """
        share = 1 if len(self.sizes) < 4 or self.leaves_heads_out else math.ceil(self.sizes[HEAD] / max(1, num_heads))
        query = self._whole.query
        width = 1 if isinstance(self._whole.form, InnerProduct) else query.shape[-1]
        # Masks and biases go by places, which are int64; autocast takes float32 for the softmax.
        return max(1, share * width * max(8, query.element_size()))

    def weights(self, rows: Numbers | None, heads: Numbers | None, queries: range) -> Float[Tensor, "... query key"]:
        """The weights of those rows and heads, and of neighboring queries."""
        if self._last[:2] != (rows, heads):
            self._last = rows, heads, self._of_heads(self._of_rows(rows), heads)
        problem = self._last[2]
        if len(queries) < self.sizes[QUERY]:
            problem = problem.tile(queries.start, queries.stop)
        weights = reference.weights(problem)
        return weights if self.cuts_heads else take(weights, HEAD, heads)

    def _of_rows(self, rows: Numbers | None) -> Problem:
        problem, axis = self._whole, -len(self.sizes)
        if rows is None:
            return problem
        return problem._replace(
            query=take(problem.query, axis, rows),
            keys=take(problem.keys, axis, rows),
            values=take(problem.values, axis, rows),
            choose=_choice_of(problem.choose, axis, rows),
            asked=take(problem.asked, axis, rows),
            mask=None if problem.mask is None else _mask_of_rows(problem.mask, rows, len(self.sizes), problem.places),
            bias=None if problem.bias is None else _bias_of_rows(problem.bias, rows, len(self.sizes), problem.places),
        )

    def _of_heads(self, problem: Problem, heads: Numbers | None) -> Problem:
        if heads is None or not self.cuts_heads:
            return problem
        theirs, num_axes = [head // problem.group for head in heads], len(self.sizes)
        return problem._replace(
            query=take(problem.query, HEAD, heads),
            keys=take(problem.keys, HEAD, theirs),
            values=take(problem.values, HEAD, theirs),
            choose=_choice_of(problem.choose, HEAD, heads),
            mask=None if problem.mask is None else _TakenMask(problem.mask, HEAD, heads, num_axes),
            # A bias is asked with the queries of all heads: it may have parameters for each.
            bias=None if problem.bias is None else _TakenBias(problem.bias, HEAD, heads, num_axes),
        )


def can_cut(choose: Choice) -> bool:
    """Whether rows and heads can be cut of what the choice knows: it is sure to do the same to all, or it is Soft."""
    own = (value for part in choose.modules() for value in vars(part).values() if isinstance(value, Tensor))
    tensors = itertools.chain(choose.parameters(), choose.buffers(), own)
    return not choose.draws and (isinstance(choose, Soft) or all(tensor.numel() == 1 for tensor in tensors))


def _choice_of(choose: Choice, axis: int, numbers: Numbers) -> Choice:
    """The choice, whose beta may differ from row to row or head to head."""
    beta = choose.beta if isinstance(choose, Soft) else None
    if not isinstance(beta, Tensor) or beta.numel() == 1:
        return choose
    return Soft(take(beta.detach(), axis, numbers))


def _mask_of_rows(mask: Mask, rows: Numbers, num_axes: int, places: Places) -> Mask:
    """`mask.select`, without the copy that it would make of a dense mask."""
    match mask:
        case All() | Any():
            sides = (_mask_of_rows(side, rows, num_axes, places) for side in (mask.left, mask.right))
            return type(mask)(*sides)
        case Not():
            return Not(_mask_of_rows(mask.hidden, rows, num_axes, places))
        case Dense():
            return _TakenMask(mask, -num_axes, rows, num_axes)
    return mask.select(torch.tensor(rows, device=places.device))


def _bias_of_rows(bias: Bias, rows: Numbers, num_axes: int, places: Places) -> Bias:
    """`bias.select`, without the copy that it would make of a bias given as a tensor."""
    match bias:
        case Sum():
            sides = (_bias_of_rows(side, rows, num_axes, places) for side in (bias.left, bias.right))
            return Sum(*sides)
        case Given():
            return _TakenBias(bias, -num_axes, rows, num_axes)
    return bias.select(torch.tensor(rows, device=places.device))


@final
class _TakenMask(Mask):
    """Some entries of one axis of another mask."""

    def __init__(self, mask: Mask, axis: int, numbers: Numbers, num_axes: int):
        self._mask, self._axis, self._numbers, self._num_axes = mask, axis, numbers, num_axes

    def see(self, places: Places) -> Bool[Tensor, "..."]:
        return take(align(self._mask.see(places), self._num_axes), self._axis, self._numbers)

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        raise AssertionError("rows are cut before heads, and once")


@final
class _TakenBias(Bias):
    """Some entries of one axis of another bias."""

    def __init__(self, bias: Bias, axis: int, numbers: Numbers, num_axes: int):
        super().__init__()
        self._bias, self._axis, self._numbers, self._num_axes = bias, axis, numbers, num_axes

    def see(self, query: Float[Tensor, "... query query_dim"], places: Places) -> Float[Tensor, "..."]:
        return take(align(self._bias.see(query, places), self._num_axes), self._axis, self._numbers)
