"""Inputs of a read, prepared for kernels: checked, axes aligned, queries and keys mapped."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.axes import align, broadcast_leading, check_part, check_strided, widen
from regard.attention.biases import Bias, DistanceBias, TensorBias
from regard.attention.choices import Choice
from regard.attention.masks import Interval, Mask, intersect, materialize_mask, split_interval
from regard.attention.masks.base import additive_mask
from regard.attention.memory.base import KernelCache, KeyValueCache, MemoryView
from regard.attention.positions import Positions
from regard.attention.scores import Form, InnerProduct, Score
from regard.attention.scores.base import check_mapped, map_all
from regard.compat.torch import has_hooked_weights


class AttentionInputs(NamedTuple):
    """One read, ready to compute: mapped by the score, all tensors with as many axes.

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
    form: Any
    """Formula of the score, a Form, for fused kernels; None if they support no formula of it."""
    choice: Any
    """The Choice. A kernel knows the classes of form and choice by its `unsupported_reason`."""
    softmax: Any
    """Formula of the choice, a SoftmaxForm, for fused kernels; None if they support none of it."""
    mask: Mask | None
    bias: Bias | None
    positions: Positions
    raw_query: Tensor
    """Queries before the score mapped them, for biases that depend on them."""
    kernel_cache: KernelCache | None = None
    """Results that a kernel computed from these keys; None if the keys are not read again."""
    held_keys: Tensor | None = None
    """Keys as the memory holds them, if `MultiHead.pairs` made others of them; read by biases."""

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
    def group(self) -> int:
        """Number of query heads per head of the memory; 1 unless queries are grouped."""
        if self.query.dim() < 4 or self.keys.shape[-3] in (1, self.query.shape[-3]):
            return 1
        return self.query.shape[-3] // self.keys.shape[-3] or 1

    def zeros(self, size: int) -> Tensor:
        """Return zeros (..., query, size) with zero gradients: the output of an empty read."""
        ends = sum(tensor[..., :0].sum() for tensor in (self.query, self.keys, self.values))
        for part in (self.score, self.choice, self.bias):
            for parameter in () if part is None else part.parameters():
                ends = ends + parameter.flatten()[:0].sum()
        return self.values.new_zeros(*self.leading, self.query.shape[-2], size) + ends

    def repeat_heads(self) -> "AttentionInputs":
        """Repeat the heads of the memory so that every query head has one of its own."""
        if self.group == 1:
            return self
        heads = self.query.shape[-3]
        keys, values = _with_heads(self.keys, heads), _with_heads(self.values, heads)
        return self._replace(keys=keys, values=values)

    def expand(self, query: Tensor, *, grouped: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, keys and values with the same leading axes.

        grouped: with grouped heads, keys and values keep their own number of heads.
        """
        leading = query.shape[:-2]
        if leading == self.keys.shape[:-2] == self.values.shape[:-2]:
            return query, self.keys, self.values
        inputs = self if grouped else self.repeat_heads()
        leading = inputs.leading
        memory_leading = leading
        if inputs.group > 1:
            memory_leading = (*leading[:-1], inputs.keys.shape[-3])
        return (
            query.expand(*leading, *query.shape[-2:]),
            inputs.keys.expand(*memory_leading, *inputs.keys.shape[-2:]),
            inputs.values.expand(*memory_leading, *inputs.values.shape[-2:]),
        )

    def half_dtype(self) -> torch.dtype | None:
        """Return the half-precision dtype of the products, with autocast; None if there is none."""
        dtype, device = self.query.dtype, self.query.device.type
        is_cast = dtype != torch.float64 and device != "meta"  # autocast knows no meta tensors
        if is_cast and torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        return dtype if dtype in (torch.bfloat16, torch.float16) else None

    def with_wide_scores(self) -> "AttentionInputs":
        """Return the inputs with queries (mapped and raw) and keys in float32.

        Scores are then in float32, too: a rounded score changes its weight by a factor.
        """
        query, keys, raw_query = widen(self.query), widen(self.keys), widen(self.raw_query)
        return self._replace(query=query, keys=keys, raw_query=raw_query, kernel_cache=None)

    def tile(self, first: int, last: int) -> "AttentionInputs":
        """Return the inputs of the queries first .. last - 1 only."""
        choice = self.choice.tile(first, last)
        return self._replace(
            query=self.query[..., first:last, :],
            choice=choice,
            softmax=choice.form(),
            raw_query=self.raw_query[..., first:last, :],
            positions=self.positions.tile(first, last),
        )

    def with_sink_key(self) -> "AttentionInputs":
        """Return the same read with the sink of its softmax as one more key, whose value is zero.

        Mask and bias are then one tensor, in which that key has the score `sink`.
        """
        key, value = (x.new_zeros(1, x.shape[-1]) for x in (self.keys, self.values))
        inputs = self._append(key, value, self.softmax.sink)
        return inputs._replace(softmax=self.softmax._replace(sink=None))

    def with_registers(self, keys: Tensor, values: Tensor) -> "AttentionInputs":
        """Return the read of more pairs ([head,] register, dim), without mask and bias.

        They are behind those of the memory. Mask and bias are then one tensor.
        """
        return self._append(map_all(self.score, "map_keys", keys), values, 0.0)

    def _append(self, keys: Tensor, values: Tensor, scores: float | Tensor) -> "AttentionInputs":
        """Append pairs that all queries may read, with the bias `scores`."""
        wide = self._replace(raw_query=widen(self.raw_query))  # a rounded bias changes weights
        bias, axes = wide.bias_tensor(), (1,) * self.num_axes
        allowed = self.allowed_pairs(bias)
        added = wide.raw_query.new_zeros(axes) if bias is None else widen(bias)
        added = added if allowed is None else added.masked_fill(~allowed, float("-inf"))
        if not isinstance(scores, Tensor):
            scores = added.new_full((), scores)
        scores = scores.to(added.dtype)
        scores = scores.view(*axes[scores.dim() :], *scores.shape)
        rows = torch.broadcast_shapes(added.shape[:-1], scores.shape[:-1])
        num_keys, count = self.keys.shape[-2], keys.shape[-2]
        added = torch.cat((added.expand(*rows, num_keys), scores.expand(*rows, count)), -1)
        pairs = []
        for own, more in ((self.keys, keys), (self.values, values)):
            pairs.append(torch.cat((own, more.to(own.dtype).expand(*own.shape[:-2], -1, -1)), -2))
        return self._replace(
            keys=pairs[0],
            values=pairs[1],
            mask=None,
            bias=TensorBias(added),
            positions=Positions(self.positions.num_rows, num_keys + count, self.positions.device),
            kernel_cache=None,
        )

    def allowed_pairs(self, bias: Tensor | None = None) -> Tensor | None:
        """Return the pairs that may be read: those of the mask, without those of bias -inf."""
        allowed = None if bias is None else bias != float("-inf")
        if self.mask is None:
            return allowed
        of_mask = self._align("mask", materialize_mask(self.mask, self.positions))
        return of_mask if allowed is None else of_mask & allowed

    def softmax_mask(
        self, beta: float | Tensor, dtype: torch.dtype
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return what is added to the scores, beta bias or minus infinity, and fully masked rows.

        In those rows nothing is minus infinity: a softmax needs a key.
        """
        if self.bias is None:
            if self.mask is None:
                return None, None
            added, fully_masked = additive_mask(self.mask, self.positions, dtype)
            if added.dim() == 2 and fully_masked is None:
                return added, None
            rows = None if fully_masked is None else self._align("mask", fully_masked)
            return self._align("mask", added), rows
        bias = self.bias_tensor()
        allowed = self.allowed_pairs(bias)
        assert bias is not None
        assert allowed is not None
        fully_masked = ~allowed.any(-1, keepdim=True)
        added = (bias.masked_fill(~allowed, 0.0) * beta).to(dtype)
        return added.masked_fill(~(allowed | fully_masked), float("-inf")), fully_masked

    def bias_tensor(self) -> Tensor | None:
        """Return the bias, broadcasting to the weights, with -inf for the pairs that it hides."""
        if self.bias is None:
            return None
        keys = self.keys if self.held_keys is None else self.held_keys
        if self.num_axes > 3 and not isinstance(self.bias, DistanceBias):
            keys = _with_heads(keys, self.leading[-1])
        bias = self.bias(self.raw_query, keys.to(self.raw_query.dtype), self.positions)
        return self._align("bias", bias)

    def split_range_and_mask(self) -> tuple[Interval | None, Tensor | None]:
        """Split the mask into a range of keys per query and a tensor for the rest."""
        interval, rest = split_interval(self.mask, self.positions)
        if interval is not None:
            interval = self._align("mask", interval[0]), self._align("mask", interval[1])
        if rest is None:
            return interval, None
        return interval, self._align("mask", materialize_mask(rest, self.positions))

    def diagonals(self) -> Tensor | None:
        """Return the bias as one number per diagonal, (..., diagonal); None without such a form."""
        positions = self.positions
        if self.bias is None or not positions.is_aligned or positions.rows is not None:
            return None
        diagonals = self.bias.diagonals(positions, self.query.dtype)
        if diagonals is None:
            return None
        return self._align("bias", diagonals.unsqueeze(-2)).squeeze(-2)

    def _align(self, name: str, tensor: Tensor) -> Tensor:
        """Return the tensor with as many axes as the weights, which it must fit."""
        leading, own = self.leading, tensor.shape[:-2]
        fits = len(own) <= len(leading)
        for size, whole in zip(own, leading, strict=False):
            # torch.compile does not trace `in` for sizes that vary.
            if size != 1 and size != whole:  # noqa: PLR1714
                fits = False
        if not fits:
            kind = type(getattr(self, name)).__name__
            axes = f"those of the read, {tuple(leading)}, or 1, got {tuple(own)}"
            raise ValueError(f"the leading axes of {name} {kind} must be {axes}")
        return align(tensor, self.num_axes)


def prepare_inputs(
    query: Tensor,
    memory: KeyValueCache | tuple[Tensor, Tensor],
    *,
    score: Score,
    choice: Choice,
    mask: Mask | None,
    bias: Bias | Tensor | None,
) -> AttentionInputs:
    """Check the arguments of `attend`, align their axes, and map queries and keys."""
    has_parts = isinstance(score, Score) and isinstance(choice, Choice)
    if not has_parts or not (mask is None or isinstance(mask, Mask)):
        check_part("score", score, Score)
        check_part("choice", choice, Choice)
        if mask is not None:
            check_part("mask", mask, Mask)
    bias = bias if bias is None or isinstance(bias, Bias) else TensorBias(bias)
    cache, kernel_cache = None, None
    if isinstance(memory, KeyValueCache):
        cache = memory if memory.mapped_by is score else memory.map_keys_with(score)
        keys, values = cache.keys, cache.values
        if cache is memory:
            kernel_cache = memory.kernel_cache
        if memory.mask is not None:
            mask = intersect(mask, memory.mask)
    elif isinstance(memory, tuple | list) and len(memory) == 2:
        keys, values = memory
    else:
        kind = type(memory).__name__
        raise TypeError(f"memory must be a Memory or a pair (keys, values), got {kind}")
    _check_tensors(query, keys, values)
    num_axes = query.dim()
    if not num_axes == keys.dim() == values.dim():
        if cache is not None and score.num_heads is not None and keys.dim() < num_axes:
            raise ValueError(f"mapped keys must have {num_axes} axes, got {tuple(keys.shape)}")
        keys, values = align(keys, num_axes), align(values, num_axes)
    mapped, keys = _map(score, query, keys, is_mapped=cache is not None)
    leading = mapped.shape[:-2]
    if not leading == keys.shape[:-2] == values.shape[:-2]:
        leading = broadcast_leading(mapped, keys, values)
        mapped = mapped.expand(*leading, *mapped.shape[-2:])
    if num_axes > 3 and keys.shape[-3] != values.shape[-3]:
        keys, values = _with_heads(keys, leading[-1]), _with_heads(values, leading[-1])
        kernel_cache = None
    num_queries, dim = mapped.shape[-2:]
    # A kernel that uses the formula and not the modules does not call their hooks.
    form = None if has_hooked_weights(score, choice, bias) else score.form(dim)
    choice.check(leading, num_queries)
    softmax = choice.form()
    positions = (
        Positions(num_queries, keys.shape[-2], query.device)
        if cache is None
        else cache.positions(num_queries)
    )
    _check_score(score, form, mapped, keys, positions)
    parts = score, form, choice, softmax, mask, bias
    held_keys = None
    if bias is not None and isinstance(cache, MemoryView):
        held_keys = align(cache.memory.keys, num_axes)
    return AttentionInputs(mapped, keys, values, *parts, positions, query, kernel_cache, held_keys)


def _check_score(
    score: Score, form: Form | None, query: Tensor, keys: Tensor, positions: Positions
) -> None:
    """Raise ValueError or TypeError unless the score fits the mapped queries and keys."""
    name = type(score).__name__
    if score.num_heads is not None and query.shape[:-2][-1:] != (score.num_heads,):
        heads = f"its {score.num_heads} heads, got leading axes {tuple(query.shape[:-2])}"
        raise ValueError(f"the last leading axis of a read by {name} must be {heads}")
    if score.needs_all_keys and positions.key_positions is not None:
        raise ValueError(
            f"keys of {name} must be in their order from position 0 on, as those of a Memory"
        )
    if form is not None and query.shape[-1] != keys.shape[-1]:
        sizes = f"{query.shape[-1]} and {keys.shape[-1]}"
        sizes = f"{sizes}; General, Additive and Concat support others"
        raise ValueError(f"queries and keys of {name} must have equal sizes, got {sizes}")
    if isinstance(form, InnerProduct) and isinstance(form.scale, Tensor):
        # Kernels pass the scale as a number, which has no gradient.
        raise TypeError(f"scale of {name}.form must be a number, got a tensor; use Soft(beta)")


def _map(score: Score, query: Tensor, keys: Tensor, *, is_mapped: bool) -> tuple[Tensor, Tensor]:
    """Return mapped queries and keys; is_mapped: the keys are mapped already."""
    mapped_keys = keys if is_mapped else score.map_keys(keys)
    if mapped_keys.shape[:-1] != keys.shape[:-1]:
        check_mapped(score, "map_keys", keys, mapped_keys)
    mapped_query = score.map_query(query)
    if mapped_query.shape[:-1] != query.shape[:-1]:
        check_mapped(score, "map_query", query, mapped_query)
    return mapped_query, mapped_keys


def _check_tensors(query: Tensor, keys: Tensor, values: Tensor) -> None:
    """Raise TypeError or ValueError unless queries can read these keys and values.

    Rules: floating-point tensors of one dtype (with autocast they may differ) on one device, of
    shapes (..., query, dim), (..., key, key_dim) and (..., key, value_dim), where dim and key_dim
    are at least 1. Keys and values may omit the last leading axes of the query.
    """
    for name, tensor, axes in (
        ("query", query, "query, dim"),
        ("keys", keys, "key, dim"),
        ("values", values, "key, value_dim"),
    ):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor.is_nested or tensor.layout != torch.strided:
            check_strided(name, tensor)
        if tensor.dim() < 2:
            raise ValueError(f"{name} must be (..., {axes}), got shape {tuple(tensor.shape)}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, got dtype {tensor.dtype}")
        if tensor.dtype != query.dtype and not torch.is_autocast_enabled(query.device.type):
            raise TypeError(f"{name} must have the query's dtype {query.dtype}, got {tensor.dtype}")
        if tensor.device != query.device:
            raise ValueError(f"{name} must be on {query.device}, got {tensor.device}")
        if tensor.shape[-1] == 0 and name != "values":
            raise ValueError(
                f"the last axis of {name} must not be empty, got {tuple(tensor.shape)}"
            )
        if tensor.dim() > query.dim():
            raise ValueError(
                f"query must have all leading axes of its memory, {tuple(tensor.shape[:-2])}, got "
                f"shape {tuple(query.shape)}"
            )
    if keys.shape[-2] != values.shape[-2]:
        numbers = f"{keys.shape[-2]} keys and {values.shape[-2]} values"
        raise ValueError(f"there must be as many values as keys, got {numbers}")


def _with_heads(tensor: Tensor, num_heads: int) -> Tensor:
    """Repeat the heads of keys or values to this number, unless they have one."""
    own = tensor.shape[-3]
    return tensor if own in (1, num_heads) else tensor.repeat_interleave(num_heads // own, -3)
