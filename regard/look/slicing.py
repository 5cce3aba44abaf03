"""Selected rows, heads and queries of a read, computed as a smaller read with few copies.

    weights(slice(read))[r, h, i, :] = weights(read)[rows[r], heads[h], queries[i], :]

Scores with parameters per head that are not inner products are computed for all heads, and their
weights are selected.
"""

import itertools
import math
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.axes import align
from regard.attention.biases import Bias, SumOfBiases, TensorBias
from regard.attention.choices import Choice, Soft
from regard.attention.inputs import AttentionInputs
from regard.attention.kernels import reference
from regard.attention.masks import All, Any, Dense, Mask, Not
from regard.attention.positions import Positions
from regard.attention.scores import InnerProduct

HEAD, QUERY = -3, -2
"""Axes of the weights, where they have that many."""
MASKED = -0.0
"""Recorded weight of a masked pair: equal to 0, but pictures can tell it from a weight that a
choice made 0."""

Indices = Sequence[int]


def sizes_of(inputs: AttentionInputs) -> tuple[int, ...]:
    """Return the shape of the weights: leading axes of queries and keys, broadcast (grouped heads
    are the queries')."""
    query, keys = inputs.query.shape, inputs.keys.shape
    missing = len(query) - len(keys)
    pairs = zip((*(1,) * -missing, *query[:-2]), (*(1,) * missing, *keys[:-2]), strict=True)
    return *(key_size if size == 1 else size for size, key_size in pairs), query[-2], keys[-2]


def take(tensor: Tensor, axis: int, indices: Indices | None) -> Tensor:
    """Return the entries at `indices` of an axis (negative); the whole tensor if it lacks the axis
    or it has size 1.

    Consecutive entries are a view.
    """
    if indices is None or tensor.dim() < -axis or tensor.shape[axis] == 1:
        return tensor
    if list(indices) == list(range(indices[0], indices[0] + len(indices))):
        return tensor.narrow(axis, indices[0], len(indices))
    return tensor.index_select(axis, torch.tensor(indices, device=tensor.device))


class SlicedRead:
    """Read whose weights are computed for some rows, heads and queries at a time; None is all rows
    or heads."""

    def __init__(self, inputs: AttentionInputs):
        self.sizes = sizes_of(inputs)
        self._whole = inputs._replace(values=inputs.keys[..., :0])  # weights need none
        self._last: tuple[Indices | None, Indices | None, AttentionInputs] = None, None, self._whole

    @property
    def slices_heads(self) -> bool:
        """True if only the selected heads are computed; False if the read has a single head or
        per-head parameters."""
        is_same_for_all_queries = self._whole.score.num_heads is None or isinstance(
            self._whole.form, InnerProduct
        )
        return len(self.sizes) > 3 and is_same_for_all_queries

    @property
    def saves_memory_by_head(self) -> bool:
        """True if fewer heads need less memory; a bias is computed for all heads in any case."""
        return self.slices_heads and self._whole.bias is None

    def bytes_per_weight(self, num_heads: int) -> int:
        """Return the bytes of the largest tensor per weight, when `num_heads` heads are computed.

        For scores other than inner products this assumes the worst case, sums of all queries and
        keys.
        """
        share = (
            1
            if len(self.sizes) < 4 or self.saves_memory_by_head
            else math.ceil(self.sizes[HEAD] / max(1, num_heads))
        )
        query = self._whole.query
        width = 1 if isinstance(self._whole.form, InnerProduct) else query.shape[-1]
        # Masks and biases use positions in int64; autocast runs the softmax in float32.
        return max(1, share * width * max(8, query.element_size()))

    def weights(
        self, rows: Indices | None, heads: Indices | None, queries: range
    ) -> Float[Tensor, "... query key"]:
        """Return the weights of these rows and heads, and of a range of queries; those of masked
        pairs are MASKED."""
        if self._last[:2] != (rows, heads):
            self._last = rows, heads, self._of_heads(self._of_rows(rows), heads)
        inputs = self._last[2]
        if len(queries) < self.sizes[QUERY]:
            inputs = inputs.tile(queries.start, queries.stop)
        chosen, allowed = reference.choose_weights(inputs)
        weights = chosen.to(inputs.query.dtype) + 0.0  # -0 becomes 0
        if allowed is not None:
            weights = weights.masked_fill(~allowed, MASKED)
        return weights if self.slices_heads else take(weights, HEAD, heads)

    def _of_rows(self, rows: Indices | None) -> AttentionInputs:
        inputs, axis = self._whole, -len(self.sizes)
        if rows is None:
            return inputs
        return inputs._replace(
            query=take(inputs.query, axis, rows),
            keys=take(inputs.keys, axis, rows),
            values=take(inputs.values, axis, rows),
            choice=_choice_of(inputs.choice, axis, rows),
            raw_query=take(inputs.raw_query, axis, rows),
            mask=None
            if inputs.mask is None
            else _mask_of_rows(inputs.mask, rows, len(self.sizes), inputs.positions),
            bias=None
            if inputs.bias is None
            else _bias_of_rows(inputs.bias, rows, len(self.sizes), inputs.positions),
        )

    def _of_heads(self, inputs: AttentionInputs, heads: Indices | None) -> AttentionInputs:
        if heads is None or not self.slices_heads:
            return inputs
        key_heads, num_axes = [head // inputs.group for head in heads], len(self.sizes)
        return inputs._replace(
            query=take(inputs.query, HEAD, heads),
            keys=take(inputs.keys, HEAD, key_heads),
            values=take(inputs.values, HEAD, key_heads),
            choice=_choice_of(inputs.choice, HEAD, heads),
            mask=None if inputs.mask is None else _SelectedMask(inputs.mask, HEAD, heads, num_axes),
            # A bias needs the queries of all heads: it may have parameters per head.
            bias=None if inputs.bias is None else _SelectedBias(inputs.bias, HEAD, heads, num_axes),
        )


def can_slice(choice: Choice) -> bool:
    """Return True if rows and heads of a choice can be computed alone: it treats all alike, or it
    is Soft."""
    own = (
        value
        for part in choice.modules()
        for value in vars(part).values()
        if isinstance(value, Tensor)
    )
    tensors = itertools.chain(choice.parameters(), choice.buffers(), own)
    return not choice.is_random and (
        isinstance(choice, Soft) or all(tensor.numel() == 1 for tensor in tensors)
    )


def _choice_of(choice: Choice, axis: int, indices: Indices) -> Choice:
    """Return the choice for these entries of an axis: beta may differ by row or head."""
    beta = choice.beta if isinstance(choice, Soft) else None
    if not isinstance(beta, Tensor) or beta.numel() == 1:
        return choice
    return Soft(take(beta.detach(), axis, indices))


def _mask_of_rows(mask: Mask, rows: Indices, num_axes: int, positions: Positions) -> Mask:
    """Return `mask.select(rows)` without copying dense masks."""
    match mask:
        case All() | Any():
            sides = (
                _mask_of_rows(side, rows, num_axes, positions) for side in (mask.left, mask.right)
            )
            return type(mask)(*sides)
        case Not():
            return Not(_mask_of_rows(mask.hidden, rows, num_axes, positions))
        case Dense():
            return _SelectedMask(mask, -num_axes, rows, num_axes)
    return mask.select(torch.tensor(rows, device=positions.device))


def _bias_of_rows(bias: Bias, rows: Indices, num_axes: int, positions: Positions) -> Bias:
    """Return `bias.select(rows)` without copying biases given as tensors."""
    match bias:
        case SumOfBiases():
            sides = (
                _bias_of_rows(side, rows, num_axes, positions) for side in (bias.left, bias.right)
            )
            return SumOfBiases(*sides)
        case TensorBias():
            return _SelectedBias(bias, -num_axes, rows, num_axes)
    return bias.select(torch.tensor(rows, device=positions.device))


@final
class _SelectedMask(Mask):
    """Mask of some entries of one axis of another mask."""

    def __init__(self, mask: Mask, axis: int, indices: Indices, num_axes: int):
        self._mask, self._axis, self._indices, self._num_axes = mask, axis, indices, num_axes

    def materialize(self, positions: Positions) -> Bool[Tensor, "..."]:
        return take(
            align(self._mask.materialize(positions), self._num_axes), self._axis, self._indices
        )

    def select(self, index: Int[Tensor, " rows"]) -> Mask:
        raise AssertionError("rows must be selected before heads, and once")


@final
class _SelectedBias(Bias):
    """Bias of some entries of one axis of another bias."""

    def __init__(self, bias: Bias, axis: int, indices: Indices, num_axes: int):
        super().__init__()
        self._bias, self._axis, self._indices, self._num_axes = bias, axis, indices, num_axes

    def materialize(
        self, query: Float[Tensor, "... query query_dim"], positions: Positions
    ) -> Float[Tensor, "..."]:
        return take(
            align(self._bias.materialize(query, positions), self._num_axes),
            self._axis,
            self._indices,
        )
