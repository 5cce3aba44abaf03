"""Vectors of a read, from its inputs to its outputs, recorded beside the weights: the numbers of
the view "walk".

    Q = X' W_Q + b,  K = X W_K + b,  V = X W_V + b      items X' and X, projected by each head
    S = score(Q, K) + bias, -inf where masked           A = choice(S)
    Z = A V                                             out = [Z_1; ...; Z_l] W_O + b

`record(..., vectors=True)` records them call by call. Queries, keys, values and scores are those
that the read compares: rotated by rotary positions, mapped by a score with parameters, with its
soft cap. Z and out are the outputs of the model's own modules. Nothing is recorded, and nothing
costs anything, without it.

Source: lectures, A.2, C.6; vaswani2017, section 3.2.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from regard.attention.choices import Soft
from regard.attention.choices.base import mask_scores
from regard.attention.inputs import AttentionInputs
from regard.attention.kernels import reference
from regard.attention.scores.base import InnerProduct
from regard.compat.torch import disable_compile
from regard.errors import UserError
from regard.layers.multihead import MultiHead
from regard.layers.read import Read
from regard.look.recording_file import numbers_of
from regard.look.slicing import sizes_of
from regard.trace import Trace

MAX_BYTES = 1 << 30
"""Largest size in bytes of the vectors of a recording."""

VECTORS = {
    "items": "query item",
    "source": "key source",
    "queries": "head query dim",
    "keys": "key_head key key_dim",
    "values": "key_head key value",
    "scores": "head query key",
    "outputs": "head query value",
    "result": "query result",
}
"""Axes of each tensor of ReadVectors."""
_TOLERANCE = 2**-6
"""Relative deviation, that of bfloat16, up to which values are those projected from given items."""


@dataclass(frozen=True, kw_only=True)
class ReadFormula:
    """Formulas of a read's scores and weights, as far as they are known."""

    score: str
    """Name of the score, such as ScaledDot()."""
    scale: float | None = None
    """Factor of the inner product <q, k>; None for other scores."""
    cap: float | None = None
    """Soft cap of the scores: cap tanh(. / cap); None: none."""
    choice: str
    """Name of the choice, such as Soft(beta=1.0)."""
    beta: float | None = None
    """Inverse temperature of a softmax; None for other choices, or if it differs between rows."""
    mapped: str = ""
    """Map of the projected queries and keys before they are compared, such as Rotary(8); empty if
    there is none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadVectors:
    """Vectors of one read for one sample. Numbers that no call computed are NaN (of scores:
    -inf)."""

    items: Float[Tensor, "query dim"] | None = None
    """X', the items of the queries; None if they are unknown: the read has no projections."""
    source: Float[Tensor, "key source_dim"] | None = None
    """X, the items that are asked; None if they are unknown."""
    queries: Float[Tensor, "head query head_dim"]
    keys: Float[Tensor, "key_head key head_dim"]
    """Keys of as many heads as the queries, or fewer (grouped queries: each serves adjacent
    heads)."""
    values: Float[Tensor, "key_head key value_dim"]
    scores: Float[Tensor, "head query key"]
    """With bias and soft cap; -inf: masked."""
    outputs: Float[Tensor, "head query value_dim"]
    """Z."""
    result: Float[Tensor, "query output_dim"] | None = None
    """Output of the projection W_O; None without one."""
    projections: Mapping[str, Tensor] = field(default_factory=dict)
    """Weights (out, in) "query", "key", "value", "output", and biases "query bias", ...; empty
    without projections."""
    formula: ReadFormula

    def key_head(self, head: int) -> int:
        """Return the head of keys and values that a head of queries reads."""
        return head * len(self.keys) // len(self.queries)

    def projection(self, name: str, head: int) -> tuple[Tensor, Tensor | None] | None:
        """Return weight and bias of "query", "key" or "value" for a head of queries; None without
        projections."""
        weight, bias = self.projections.get(name), self.projections.get(f"{name} bias")
        if weight is None:
            return None
        count, number = (
            (len(self.queries), head) if name == "query" else (len(self.keys), self.key_head(head))
        )
        size = len(weight) // count
        rows = slice(number * size, (number + 1) * size)
        return weight[rows], None if bias is None else bias[rows]

    def score_text(self, *, has_bias: bool) -> str:
        """Return the formula of the scores, such as "Q K^T / sqrt(8) + bias"."""
        formula, size = self.formula, self.queries.shape[-1]
        if formula.scale is None:
            text = f"{formula.score}(Q, K)"
        elif formula.scale == 1:
            text = "Q K^T"
        elif math.isclose(formula.scale, size**-0.5, rel_tol=1e-6):
            text = f"Q K^T / sqrt({size})"
        else:
            text = f"{formula.scale:.4g} Q K^T"
        if formula.cap is not None:
            text = f"{formula.cap:g} tanh({text} / {formula.cap:g})"
        return f"{text} + bias" if has_bias else text

    def choice_text(self) -> str:
        """Return the formula of the weights, such as "softmax(S)"."""
        beta = self.formula.beta
        if beta is None:
            return f"{self.formula.choice}(S)"
        return "softmax(S)" if beta == 1 else f"softmax({beta:.4g} S)"


@dataclass(kw_only=True, eq=False)
class CallVectors:
    """Vectors of one call of a read, each (batch, [head,] ...)."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    scores: Tensor
    outputs: Tensor
    items: Tensor | None
    source: Tensor | None
    """The items that were projected to keys last, before this call."""
    extends: bool
    """True if they were projected in the same step of a search: they extend the memory."""
    result: Tensor | None = None
    formula: ReadFormula


class _KeySource(NamedTuple):
    items: Tensor
    position: tuple[int, int | None]


class Vectors:
    """Vectors of the recorded calls of every read, and the hooks that record them."""

    def __init__(
        self,
        model: nn.Module,
        reads: Mapping[str, Read],
        *,
        dtype: torch.dtype,
        trace: Trace | None,
    ):
        self._dtype, self._trace, self._bytes = dtype, trace, 0
        self._calls: dict[str, list[CallVectors | None]] = {name: [] for name in reads}
        self._items: dict[str, Tensor] = {}
        self._sources: dict[str, _KeySource] = {}
        modules = {
            id(module.read): module for module in model.modules() if isinstance(module, MultiHead)
        }
        self._heads = {
            name: modules[id(read)] for name, read in reads.items() if id(read) in modules
        }
        self._projections: dict[str, dict[str, Tensor]] = {}

    def register_hooks(self) -> list[RemovableHandle]:
        """Register the hooks of the projections of every read, and return their handles."""
        handles = []
        for name, heads in self._heads.items():

            def keep_items(
                _: nn.Module, args: tuple, kwargs: dict[str, Any], name: str = name
            ) -> None:
                self._items[name] = kwargs["query"] if "query" in kwargs else args[0]

            def keep_source(_: nn.Module, args: tuple, name: str = name) -> None:
                self._sources[name] = _KeySource(args[0], self._position)

            def keep_result(_: nn.Module, args: tuple, output: Tensor, name: str = name) -> None:
                calls = self._calls[name]
                if calls and (call := calls[-1]) is not None and call.result is None:
                    call.result = self._store(output)

            handles.append(
                heads.register_forward_pre_hook(disable_compile(keep_items), with_kwargs=True)
            )
            handles.append(heads.key.register_forward_pre_hook(disable_compile(keep_source)))
            handles.append(heads.register_forward_hook(disable_compile(keep_result)))
        return handles

    def keep(self, name: str, inputs: AttentionInputs, output: Tensor) -> None:
        """Record the vectors of a call; none of a read with other axes than ([batch, [head,]]
        query, dim).

        Raises: UserError if the vectors of all calls exceed MAX_BYTES.
        """
        if not 2 <= inputs.num_axes <= 4:
            self._calls[name].append(None)
            return
        scores, allowed = reference.masked_scores(inputs)
        if allowed is not None:
            scores = mask_scores(scores, allowed)
        last = self._calls[name][-1] if self._calls[name] else None
        source, heads = self._sources.get(name), self._heads.get(name)
        items = self._items.get(name)
        if heads is not None and name not in self._projections:
            self._projections[name] = self._projections_of(heads)
        self._calls[name].append(
            CallVectors(
                queries=self._store(inputs.query),
                keys=self._store(inputs.keys, None if last is None else last.keys),
                values=self._store(inputs.values, None if last is None else last.values),
                scores=self._store(scores.expand(sizes_of(inputs))),
                outputs=self._store(output),
                items=None if items is None else self._store(items),
                source=None
                if source is None
                else self._store(source.items, None if last is None else last.source),
                extends=source is not None and source.position == self._position,
                formula=_formula(inputs, heads),
            )
        )

    def skip(self, name: str) -> None:
        """Count a recorded call without vectors."""
        self._calls[name].append(None)

    def of_call(self, name: str, index: int, row: int, size: tuple[int, int]) -> ReadVectors | None:
        """Return the vectors of one call for a row, cropped to a number of queries and keys."""
        call, (num_queries, num_keys) = self._calls[name][index], size
        if call is None:
            return None
        source = None if call.source is None else _items_of(call.source, row)[:num_keys]
        values = _heads_of(call.values, row)[:, :num_keys]
        projections = self._projections.get(name, {})
        return ReadVectors(
            items=None if call.items is None else _items_of(call.items, row)[:num_queries],
            source=source if _are_projected(source, values, projections) else None,
            queries=_heads_of(call.queries, row)[:, :num_queries],
            keys=_heads_of(call.keys, row)[:, :num_keys],
            values=values,
            scores=_heads_of(call.scores, row)[:, :num_queries, :num_keys],
            outputs=_heads_of(call.outputs, row)[:, :num_queries],
            result=None if call.result is None else _items_of(call.result, row)[:num_queries],
            projections=projections,
            formula=call.formula,
        )

    def of_steps(
        self, name: str, entries: Sequence[tuple[int, int] | None], num_keys: int, source_row: int
    ) -> ReadVectors | None:
        """Return the vectors of calls of one query each, one below another.

        entries:    index and row of each call; None without a call.
        source_row: row of the items that all calls ask, if they do not ask their own past.
        Returns None if the keys of a step are not the first ones of the last step: a memory that
        drops keys.
        """
        steps = [
            None if entry is None else (self._calls[name][entry[0]], entry[1]) for entry in entries
        ]
        made = [step for step in steps if step is not None]
        if not made or any(call is None for call, _ in made):
            return None
        calls = [(call, row) for call, row in made if call is not None]
        last, last_row = calls[-1]
        keys, values = _heads_of(last.keys, last_row), _heads_of(last.values, last_row)
        for call, row in calls:
            count = call.keys.shape[-2]
            if count > keys.shape[-2] or not torch.equal(
                _heads_of(call.keys, row), keys[:, :count]
            ):
                return None
        nothing = float("nan")

        def stack(part: Callable[[CallVectors, int], Tensor], empty: float = nothing) -> Tensor:
            rows = [
                None if step is None or step[0] is None else part(step[0], step[1])
                for step in steps
            ]
            first = next(row for row in rows if row is not None)
            return torch.cat(
                [torch.full_like(first, empty) if row is None else row for row in rows], -2
            )

        def padded_scores(call: CallVectors, row: int) -> Tensor:
            scores = _heads_of(call.scores, row)[..., :num_keys]
            return nn.functional.pad(scores, (0, num_keys - scores.shape[-1]), value=float("-inf"))

        has_items = all(call.items is not None for call, _ in calls)
        has_result = all(call.result is not None for call, _ in calls)
        projections = self._projections.get(name, {})
        source = _source_of_steps(calls, source_row)
        is_source = _are_projected(source, values, projections)
        return ReadVectors(
            items=stack(lambda call, row: _items_of(_require(call.items), row))
            if has_items
            else None,
            source=_pad_rows(_require(source), num_keys) if is_source else None,
            queries=stack(lambda call, row: _heads_of(call.queries, row)),
            keys=_pad_rows(keys, num_keys),
            values=_pad_rows(values, num_keys),
            scores=stack(padded_scores, float("-inf")),
            outputs=stack(lambda call, row: _heads_of(call.outputs, row)),
            result=stack(lambda call, row: _items_of(_require(call.result), row))
            if has_result
            else None,
            projections=projections,
            formula=last.formula,
        )

    @property
    def _position(self) -> tuple[int, int | None]:
        return (0, None) if self._trace is None else self._trace.position

    def _store(self, tensor: Tensor, before: Tensor | None = None) -> Tensor:
        """Return a copy on the CPU; `before` itself, if it is equal: the keys of a source are
        stored once."""
        copy = torch.from_numpy(numbers_of(tensor.detach(), self._dtype).copy())
        if before is not None and before.shape == copy.shape and torch.equal(before, copy):
            return before
        self._bytes += copy.numel() * copy.element_size()
        if self._bytes > MAX_BYTES:
            raise UserError(
                f"vectors of a recording must fit in {MAX_BYTES:,} bytes: record fewer inputs, or "
                f"only some reads "
                "(only=...)"
            )
        return copy

    def _projections_of(self, heads: MultiHead) -> dict[str, Tensor]:
        parts = {
            "query": heads.query,
            "key": heads.key,
            "value": heads.value,
            "output": heads.output,
        }
        return {
            f"{name} bias" if kind == "bias" else name: self._store(parameter)
            for name, part in parts.items()
            if part is not None
            for kind, parameter in part.named_parameters(recurse=False)
        }


def _formula(inputs: AttentionInputs, heads: MultiHead | None) -> ReadFormula:
    form, choice = inputs.form, inputs.choice
    is_product = isinstance(form, InnerProduct)
    beta = choice.beta if isinstance(choice, Soft) else None
    if isinstance(beta, Tensor):
        beta = float(beta.detach()) if beta.numel() == 1 else None
    mapped: list[nn.Module] = [] if heads is None or heads.positions is None else [heads.positions]
    if inputs.raw_query.data_ptr() != inputs.query.data_ptr():
        mapped.append(inputs.score)
    return ReadFormula(
        score=_one_line(inputs.score),
        scale=form.scale if is_product else None,
        cap=form.cap if is_product else None,
        choice=_one_line(choice),
        beta=beta,
        mapped=", then ".join(_one_line(module) for module in mapped),
    )


def _one_line(module: nn.Module) -> str:
    return " ".join(repr(module).split())


def _heads_of(tensor: Tensor, row: int) -> Tensor:
    """Return (head, item, size) of a tensor ([batch, [head,]] item, size); one head without
    heads."""
    if tensor.dim() == 2:
        return tensor[None]
    part = tensor[row if len(tensor) > 1 else 0]
    return part[None] if part.dim() == 2 else part


def _items_of(tensor: Tensor, row: int) -> Tensor:
    """Return (item, size) of a tensor ([batch,] item, size)."""
    return tensor if tensor.dim() == 2 else tensor[row if len(tensor) > 1 else 0]


def _source_of_steps(calls: Sequence[tuple[CallVectors, int]], source_row: int) -> Tensor | None:
    """Return the items that the keys of the last step were projected from: one of each step, or
    those of a source."""
    first = calls[0][0]
    if first.source is None:
        return None
    if not any(call.extends for call, _ in calls):
        return (
            _items_of(first.source, source_row) if source_row < max(1, len(first.source)) else None
        )
    if not all(call.extends for call, _ in calls):
        return None
    return torch.cat([_items_of(_require(call.source), row) for call, row in calls])


def _are_projected(
    source: Tensor | None, values: Tensor, projections: Mapping[str, Tensor]
) -> bool:
    """Return True if the values (head, key, value_dim) are projected from these items, up to
    rounding.

    Another memory may have been projected since, or values from other items than keys.
    """
    weight = projections.get("value")
    if source is None or weight is None or source.shape != (values.shape[-2], weight.shape[1]):
        return False
    expected = nn.functional.linear(source, weight, projections.get("value bias"))
    actual = values.transpose(0, 1).flatten(1)
    if expected.shape != actual.shape:
        return False
    return bool((expected - actual).abs().max() <= _TOLERANCE * actual.abs().max())


def _pad_rows(tensor: Tensor, count: int) -> Tensor:
    """Return (..., count, size): rows are cut, or NaN is added below."""
    return nn.functional.pad(
        tensor[..., :count, :], (0, 0, 0, count - min(count, tensor.shape[-2])), value=float("nan")
    )


def _require(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
