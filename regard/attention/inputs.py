"""Inputs of a read, prepared for kernels: axes aligned, queries and keys mapped, masks combined,
everything checked."""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.axes import (
    align,
    align_to_query,
    broadcast_leading,
    check_pair,
    is_inspectable,
    unpack_memory,
    widen,
)
from regard.attention.biases import Bias, TensorBias
from regard.attention.choices import Choice
from regard.attention.masks import All, Interval, Mask, materialize_mask, split_interval
from regard.attention.memory import KernelCache, KeyValueCache, Memory
from regard.attention.parts import check_finite_bias, check_pairs, check_part, is_own
from regard.attention.positions import Positions
from regard.attention.scores import Form, Score
from regard.attention.scores.base import form_of


class AttentionInputs(NamedTuple):
    """One read, ready to compute: queries and keys mapped by the score, all tensors with the same
    number of axes.

    The leading axes of queries and keys broadcast to those of the read. With at least two leading
    axes, the last of them is the heads. The memory may have fewer heads than the queries; query
    head h then reads memory head h // group (grouped-query attention).
    """

    query: Tensor
    """(..., [head,] query, dim)"""
    keys: Tensor
    """(..., [head,] key, dim)"""
    values: Tensor
    """(..., [head,] key, value_dim)"""
    score: Score
    form: Form | None
    """Formula of the score, for fused kernels; None if they support no formula of it."""
    choice: Choice
    mask: Mask | None
    bias: Bias | None
    positions: Positions
    raw_query: Tensor
    """Queries before the score mapped them, for biases that depend on them."""
    kernel_cache: KernelCache | None = None
    """Cache in which a kernel may keep what it computed from these keys; None if the keys are not
    read again."""

    @property
    def num_axes(self) -> int:
        """Number of axes of the weights."""
        return self.query.dim()

    @property
    def leading(self) -> tuple[int, ...]:
        """Leading axes of the weights and of the output."""
        ours, theirs = self.query.shape[:-2], self.keys.shape[:-2]
        if ours == theirs:
            return ours
        # With grouped queries, the queries have more heads than the keys.
        return tuple(k if q == 1 else q for q, k in zip(ours, theirs, strict=True))

    @property
    def is_empty(self) -> bool:
        """True if there are no queries, no keys or no batch entries."""
        return self.query.numel() == 0 or self.keys.numel() == 0

    def zeros(self, size: int) -> Tensor:
        """Return zeros (..., query, size), the output of an empty read; their gradients are zeros
        too."""
        ends = sum(tensor[..., :0].sum() for tensor in (self.query, self.keys, self.values))
        return self.values.new_zeros(*self.leading, self.query.shape[-2], size) + ends

    @property
    def group(self) -> int:
        """Number of query heads per head of the memory; 1 unless queries are grouped."""
        if self.query.dim() < 4 or self.keys.shape[-3] in (1, self.query.shape[-3]):
            return 1
        return self.query.shape[-3] // self.keys.shape[-3] or 1

    def expand_leading(self, leading: tuple[int, ...]) -> "AttentionInputs":
        """Expand the queries to the leading axes of the read, and give keys and values the same
        number of heads."""
        query, keys, values = self.query, self.keys, self.values
        if query.shape[:-2] == leading and keys.shape[:-2] == values.shape[:-2]:
            return self
        if self.leading != leading:
            query = query.expand(*leading, *query.shape[-2:])
        if len(leading) < 2 or keys.shape[-3] == values.shape[-3]:
            return self._replace(query=query)
        keys, values = (
            x if x.shape[-3] in (1, leading[-1]) else _repeat(x, leading[-1] // x.shape[-3])
            for x in (keys, values)
        )
        return self._replace(query=query, keys=keys, values=values, kernel_cache=None)

    def repeat_heads(self) -> "AttentionInputs":
        """Repeat the heads of the memory so that every query head has one of its own."""
        if self.group == 1:
            return self
        return self._replace(
            keys=_repeat(self.keys, self.group), values=_repeat(self.values, self.group)
        )

    def half_dtype(self) -> torch.dtype | None:
        """Return the half-precision dtype of the products, that of autocast included; None if there
        is none."""
        dtype = self.query.dtype
        if dtype != torch.float64 and torch.is_autocast_enabled(self.query.device.type):
            dtype = torch.get_autocast_dtype(self.query.device.type)
        return dtype if dtype in (torch.bfloat16, torch.float16) else None

    def with_wide_scores(self) -> "AttentionInputs":
        """Return the inputs with queries (mapped and raw) and keys in float32, so that scores are
        in float32 too.

        In half precision a rounded score changes its weight by a factor.
        """
        query, keys, raw_query = widen(self.query), widen(self.keys), widen(self.raw_query)
        return self._replace(query=query, keys=keys, raw_query=raw_query, kernel_cache=None)

    def tile(self, first: int, last: int) -> "AttentionInputs":
        """Return the inputs of the queries first .. last - 1 only."""
        return self._replace(
            query=self.query[..., first:last, :],
            choice=self.choice.tile(first, last),
            raw_query=self.raw_query[..., first:last, :],
            positions=self.positions.tile(first, last),
        )

    def allowed_pairs(self, bias: Tensor | None = None) -> Tensor | None:
        """Return the pairs that may be read, broadcasting to the weights: the mask without pairs of
        bias -inf."""
        allowed_by_bias = None if bias is None else bias != float("-inf")
        if self.mask is None:
            return allowed_by_bias
        allowed = self._align("mask", materialize_mask(self.mask, self.positions))
        return allowed if allowed_by_bias is None else allowed & allowed_by_bias

    def bias_tensor(self) -> Tensor | None:
        """Return the bias, broadcasting to the weights, with -inf for the pairs that it hides.

        Raises: ValueError, on a CPU, if a bias that is not of this package is NaN or inf for a pair
                that is not masked.
        """
        if self.bias is None:
            return None
        tensor = self.bias.materialize(self.raw_query, self.positions)
        tensor = self._align("bias", check_pairs(self.bias, tensor, self.positions, is_mask=False))
        has_bad = (
            is_inspectable(tensor) and is_own(self.bias) and not bool((tensor < float("inf")).all())
        )
        if has_bad and bool(self.raw_query.isfinite().all()):
            check_finite_bias(
                f"{type(self.bias).__name__}.materialize", tensor, self.allowed_pairs(tensor)
            )
        return tensor

    def split_range_and_mask(self) -> tuple[Interval | None, Tensor | None]:
        """Split the mask into a range of keys per query and a tensor for the rest; both broadcast
        to the weights."""
        interval, rest = split_interval(self.mask, self.positions)
        if interval is not None:
            interval = self._align("mask", interval[0]), self._align("mask", interval[1])
        return interval, None if rest is None else self._align(
            "mask", materialize_mask(rest, self.positions)
        )

    def diagonals(self) -> Tensor | None:
        """Return the bias as one number per diagonal, (..., diagonal); None without such a form or
        for a tile."""
        positions = self.positions
        if self.bias is None or not positions.is_aligned or positions.rows is not None:
            return None
        diagonals = self.bias.diagonals(positions, self.query.dtype)
        if diagonals is None:
            return None
        if (
            is_inspectable(diagonals)
            and is_own(self.bias)
            and not bool((diagonals < float("inf")).all())
        ):
            return None  # `bias_tensor` checks the pairs that are not masked
        return self._align("bias", diagonals.unsqueeze(-2)).squeeze(-2)

    def may_have_fully_masked_rows(self) -> bool:
        """Return False only if every query is certain to have a key that it may attend to."""
        if self.keys.shape[-2] == 0 or self.bias is not None:
            return True
        return self.mask is not None and self.mask.may_have_fully_masked_rows(self.positions)

    def _align(self, name: str, tensor: Tensor) -> Tensor:
        """Return the tensor with as many axes as the weights, and check that it broadcasts to
        them."""
        leading, own = tuple(self.leading), tensor.shape[:-2]
        # torch.compile does not trace `in` for sizes that vary.
        differs = any(
            size != 1 and size != whole  # noqa: PLR1714
            for size, whole in zip(own, leading, strict=False)
        )
        if not differs and len(own) <= len(leading):
            return align(tensor, self.num_axes)
        part = f"{name} {type(getattr(self, name)).__name__}"
        if len(own) > len(leading):
            raise ValueError(
                f"{part} must have at most the {self.num_axes} axes of the read, got {tensor.dim()}"
            )
        raise ValueError(
            f"the leading axes of {part} must be those of the read, {leading}, or 1, got "
            f"{tuple(own)}"
        )


def prepare_inputs(
    query: Tensor,
    memory: KeyValueCache | tuple[Tensor, Tensor],
    *,
    score: Score,
    choice: Choice,
    mask: Mask | None,
    bias: Bias | Tensor | None,
) -> AttentionInputs:
    """Check the arguments of `attend`, align their axes, map queries and keys, and combine the
    masks, for a kernel."""
    check_part("score", score, Score, "ScaledDot()")
    check_part("choice", choice, Choice, "Soft()")
    if mask is not None:
        check_part("mask", mask, Mask, "causal() or dense(tensor)")
    if bias is not None and not isinstance(bias, Bias):
        bias = TensorBias(bias)
    if not isinstance(memory, KeyValueCache):
        query, keys, values = unpack_memory(query, memory)
        memory = Memory(keys, values)
    check_pair(query, memory.keys, memory.values)
    mapped = memory.map_keys_with(score)
    keys, values = mapped.keys, mapped.values
    if not query.dim() == keys.dim() == values.dim():
        query, keys, values = _with_equal_axes(query, keys, values, score)
    raw_query, query = query, score.map_query(query)
    leading = broadcast_leading(query, keys, values)
    if score.num_heads is not None and score.num_heads not in leading[-1:]:
        raise ValueError(
            f"the last leading axis of a read by {type(score).__name__} must be its "
            f"{score.num_heads} heads, "
            f"got leading axes {leading}"
        )
    if mask is not None and memory.mask is not None:
        mask = All(mask, memory.mask)
    inputs = AttentionInputs(
        query=query,
        keys=keys,
        values=values,
        score=score,
        form=form_of(score, query.shape[-1]),
        choice=choice,
        mask=memory.mask if mask is None else mask,
        bias=bias,
        positions=memory.positions(query.shape[-2]),
        raw_query=raw_query,
        kernel_cache=memory.kernel_cache if mapped is memory else None,
    )
    choice.check(leading, query.shape[-2])
    return inputs.expand_leading(leading)


def _with_equal_axes(
    query: Tensor, keys: Tensor, values: Tensor, score: Score
) -> tuple[Tensor, Tensor, Tensor]:
    """Align keys and values to the axes of the query. Raises ValueError if the heads of mapped keys
    are ambiguous."""
    tensors = align_to_query(query, keys, values)
    if score.num_heads is not None and keys.dim() < query.dim():
        raise ValueError(
            f"keys that {type(score).__name__} maps per head must have as many axes as the query, "
            f"{query.dim()}, "
            f"got shape {tuple(keys.shape)}; add an axis of heads, of size 1 if all heads share "
            f"the keys"
        )
    return tensors


def _repeat(tensor: Tensor, group: int) -> Tensor:
    return torch.repeat_interleave(tensor, group, -3)
