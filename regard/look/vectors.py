"""Vectors of a read, from inputs to outputs, recorded beside the weights: for the view "walk".

    Q = X' W_Q + b,  K = X W_K + b,  V = X W_V + b      items X' and X, projected by each head
    S = score(Q, K) + bias, -inf where masked           A = choice(S)
    Z = A V                                             out = [Z_1, ..., Z_l] W_O + b

A score that maps states itself has the same parts: X' are the states of the queries, X those of
the memory, W_Q and W_K the weights of an Additive, Concat or General score.

`record(..., vectors=True)` records them call by call. Queries, keys, values and scores are those
that the read compares: rotated by rotary positions, mapped by a score with parameters, with its
soft cap. Z and out are the outputs of the model's own modules. Nothing is recorded, and nothing
costs anything, without it.

Source: lectures, A.2, C.6; vaswani2017, section 3.2.
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from regard.attention.choices import Soft
from regard.attention.choices.base import mask_scores
from regard.attention.inputs import AttentionInputs
from regard.attention.kernels import reference
from regard.attention.scores import Additive, Concat, General, Score
from regard.attention.scores.base import InnerProduct, TanhSum
from regard.compat.torch import disable_compile
from regard.errors import UserError
from regard.layers.multihead import MultiHead
from regard.look.arrays import numbers_of, sizes_of
from regard.trace import Trace

MAX_BYTES = 1 << 30
"""Largest size in bytes of the vectors of a recording."""
VECTORS = ("items", "source", "queries", "keys", "values", "scores", "outputs", "result")
_WITHOUT_HEADS = ("items", "result")
_PER_QUERY = {"items", "queries", "scores", "outputs", "result"}
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
    is_additive: bool = False
    """True: the score is v . tanh(q + k)."""
    beta: float | None = None
    """Inverse temperature of a softmax; None for other choices, or if it differs between rows."""
    mapped: str = ""
    """Map of projected queries and keys before they are compared, such as Rotary(8), or empty."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadVectors:
    """Vectors of one read for one sample; NaN (scores: -inf) for numbers that were not computed."""

    items: Float[Tensor, "query dim"] | None = None
    """X', the items of the queries; None if they are unknown: the read has no projections."""
    source: Float[Tensor, "key source_dim"] | None = None
    """X, the items that are asked; None if they are unknown."""
    queries: Float[Tensor, "head query head_dim"]
    keys: Float[Tensor, "key_head key head_dim"]
    """Keys of as many heads as the queries, or fewer: each then serves adjacent query heads."""
    values: Float[Tensor, "key_head key value_dim"]
    scores: Float[Tensor, "head query key"]
    """With bias and soft cap; -inf: masked."""
    outputs: Float[Tensor, "head query value_dim"]
    """Z."""
    result: Float[Tensor, "query output_dim"] | None = None
    """Output of the projection W_O; None without one."""
    projections: Mapping[str, Tensor] = field(default_factory=dict)
    """Weights (out, in) "query", "key", "value", "output", biases "query bias", ..., and "v"
    ([head,] hidden) of an additive score; those that are known."""
    formula: ReadFormula

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that are known, by the names of VECTORS."""
        parts = {part: getattr(self, part) for part in VECTORS}
        return {part: tensor for part, tensor in parts.items() if tensor is not None}

    def key_head(self, head: int) -> int:
        """Return the head of keys and values that a head of queries reads."""
        return head * len(self.keys) // len(self.queries)

    def projection(self, name: str, head: int) -> tuple[Tensor, Tensor | None] | None:
        """Return weight and bias of "query", "key" or "value" for a head of queries, or None."""
        if name not in self.projections:
            return None
        weight, bias = self.projections[name], self.projections.get(f"{name} bias")
        count, number = len(self.queries), head
        if name != "query":
            count, number = len(self.keys), self.key_head(head)
        size = len(weight) // count
        rows = slice(number * size, (number + 1) * size)
        return weight[rows], None if bias is None else bias[rows]

    def score_text(self, *, has_bias: bool, query: str = "Q", key: str = "") -> str:
        """Return the formula of the scores, such as "Q K^T / sqrt(8) + bias".

        With a key, that of one pair, such as "v . tanh(W_k h_i + W_q s_j)".
        """
        formula, size = self.formula, self.queries.shape[-1]
        product = f"({key}) . ({query})" if " " in key + query else f"{key} . {query}"
        if not key:
            product = f"{query} K^T"
        if formula.is_additive:
            text = f"v . tanh({key} + {query})" if key else "v . tanh(q_i + k_j)"
        elif formula.scale is None:
            text = f"{formula.score.partition('(')[0]}({query}, {key or 'K'})"
        elif formula.scale == 1:
            text = product
        elif math.isclose(formula.scale, size**-0.5, rel_tol=1e-6):
            text = f"{product} / sqrt({size})"
        else:
            text = f"{formula.scale:.4g} {product}"
        if formula.cap is not None:
            text = f"{formula.cap:g} tanh({text} / {formula.cap:g})"
        return f"{text} + bias" if has_bias else text

    def choice_text(self, scores: str = "S") -> str:
        """Return the formula of the weights, such as "softmax(S)"."""
        beta = self.formula.beta
        if beta is None:
            return f"{self.formula.choice}({scores})"
        return f"softmax({scores})" if beta == 1 else f"softmax({beta:.4g} {scores})"


@dataclass(eq=False, kw_only=True)
class CallVectors:
    """Vectors of one call of a read."""

    tensors: dict[str, Tensor]
    """By the names of ReadVectors, each (batch, [head,] ...)."""
    source: Tensor | None
    """Items that were projected to keys last, before this call."""
    extends: bool
    """True if they were projected in the same step of a search: they extend the memory."""
    projections: Mapping[str, Tensor]
    formula: ReadFormula


class VectorRecorder:
    """Recorder of the vectors of the calls of every read, with hooks on multi-head attention."""

    def __init__(
        self, model: nn.Module, reads: Container[str], *, dtype: torch.dtype, trace: Trace
    ):
        self._dtype, self._trace, self._bytes = dtype, trace, 0
        self._last: dict[str, CallVectors] = {}
        self._sources: dict[str, tuple[Tensor, tuple[int, int | None]]] = {}
        self._heads: dict[str, MultiHead] = {}
        self._value_maps: dict[str, nn.Linear] = {}
        for name, module in model.named_modules():
            read = f"{name}.read" if name else "read"
            if isinstance(module, MultiHead) and read in reads:
                self._heads[read] = module
            elif read in reads and isinstance(own := getattr(module, "value_map", None), nn.Linear):
                self._value_maps[read] = own
        self._projections: dict[str, dict[str, Tensor]] = {}

    def register_hooks(self) -> list[RemovableHandle]:
        handles = []

        def source_hook(name: str, projection: nn.Module) -> RemovableHandle:
            def keep_source(_: nn.Module, args: tuple) -> None:
                self._sources[name] = args[0], self._trace.position

            return projection.register_forward_pre_hook(disable_compile(keep_source))

        for name, value_map in self._value_maps.items():
            handles.append(source_hook(name, value_map))
        for name, heads in self._heads.items():

            def keep_items_and_result(
                _: nn.Module, args: tuple, kwargs: dict[str, Any], output: Tensor, name: str = name
            ) -> None:
                call = self._last.get(name)
                if call is not None and "result" not in call.tensors:
                    items = kwargs["query"] if "query" in kwargs else args[0]
                    call.tensors |= {"items": self._store(items), "result": self._store(output)}

            after = disable_compile(keep_items_and_result)
            handles.append(source_hook(name, heads.key))
            handles.append(heads.register_forward_hook(after, with_kwargs=True))
        return handles

    def record(self, name: str, inputs: AttentionInputs, output: Tensor) -> CallVectors:
        """Return the vectors of a call. Raises: UserError above MAX_BYTES."""
        last, heads = self._last.get(name), self._heads.get(name)
        scores, allowed = reference.masked_scores(inputs)
        if allowed is not None:
            scores = mask_scores(scores, allowed)
        maps = {} if heads is not None or inputs.num_axes > 3 else _maps_of(inputs.score)
        if name not in self._projections:
            parameters = dict(maps)
            for part_name in ("query", "key", "value", "output"):
                part = getattr(heads, part_name, None)
                if part_name == "value" and name in self._value_maps:
                    part = self._value_maps[name]
                is_gated = heads is not None and heads.output_gate is not None
                if part is None or (part_name == "output" and is_gated):
                    continue  # W_o maps Z times the gates, which is not stored
                for kind, weight in part.named_parameters(recurse=False):
                    parameters[f"{part_name} bias" if kind == "bias" else part_name] = weight
            if isinstance(inputs.form, TanhSum):
                parameters["v"] = inputs.form.v
            stored = {label: self._store(weight) for label, weight in parameters.items()}
            self._projections[name] = stored
        source, position = self._sources.get(name, (None, None))
        query, keys, values = inputs.query, inputs.keys, inputs.values
        if inputs.num_axes > 4 or keys.shape[:-2] != values.shape[:-2]:
            query, keys, values = inputs.expand(query, grouped=True)
        tensors = {
            "queries": query,
            "keys": keys,
            "values": values,
            "scores": scores.expand(sizes_of(inputs)),
            "outputs": output,
        }
        if maps:
            tensors["items"] = inputs.raw_query
        # What a call has in common with the last one is stored once.
        before = {} if last is None else last.tensors | {"source": last.source}
        for part, tensor in tensors.items():
            flat = tensor if tensor.dim() < 5 else tensor.flatten(1, -3)  # head axes
            tensors[part] = self._store(flat, before.get(part))
        self._last[name] = CallVectors(
            tensors=tensors,
            source=None if source is None else self._store(source, before.get("source")),
            extends=position == self._trace.position,
            projections=self._projections.get(name, {}),
            formula=_formula(inputs, heads, has_maps=bool(maps)),
        )
        return self._last[name]

    def _store(self, tensor: Tensor, before: Tensor | None = None) -> Tensor:
        """Return a copy on the CPU; `before` itself, if it is equal."""
        copy = torch.from_numpy(numbers_of(tensor, self._dtype).copy())
        if before is not None and torch.equal(before, copy):
            return before
        self._bytes += copy.nbytes
        if self._bytes > MAX_BYTES:
            raise UserError(
                f"vectors of a recording must fit in {MAX_BYTES:,} bytes: record fewer inputs, or "
                "only some reads (only=...)"
            )
        return copy


def read_vectors(
    entries: Sequence[tuple[CallVectors | None, int] | None], size: tuple[int, int], source_row: int
) -> ReadVectors | None:
    """Return the vectors of calls, one below another, cropped to a number of queries and keys.

    entries:    each call and a row of it; None without a call. Several have one query each.
    source_row: row of the items that all calls ask, if they do not ask their own past.
    Returns None if vectors were not recorded, or the keys of a step are not the first ones of the
    last step: a memory that drops keys.
    """
    num_queries, num_keys = size
    calls: list[tuple[CallVectors, int]] = []
    steps: dict[int, dict[str, Tensor]] = {}
    for i, entry in enumerate(entries):
        if entry is None:
            continue
        call, row = entry
        if call is None:
            return None
        calls.append((call, row))
        steps[i] = {}
        for part, tensor in call.tensors.items():
            steps[i][part] = _row_of(tensor, row, 2 if part in _WITHOUT_HEADS else 3)
    if not calls:
        return None
    last = steps[max(steps)]
    vectors = dict(last)
    for step in steps.values():
        keys = step["keys"]
        if step is not last and not torch.equal(keys, last["keys"][:, : keys.shape[1]]):
            return None
        scores = step["scores"][..., :num_keys]
        beyond = (0, num_keys - scores.shape[-1])
        step["scores"] = nn.functional.pad(scores, beyond, value=-math.inf)
    for part in _PER_QUERY & vectors.keys():
        if any(part not in step for step in steps.values()):
            del vectors[part]
            continue
        number = -math.inf if part == "scores" else math.nan
        none = torch.full_like(last[part], number)
        rows = [steps[i][part] if i in steps else none for i in range(len(entries))]
        vectors[part] = torch.cat(rows, -2)[..., :num_queries, :]
    projections = calls[-1][0].projections
    source, name = _source_of(calls, source_row), "value"
    if source is None and "value" not in projections:
        source, name = vectors["values"][0], "key"  # the values are the states, if there are maps
    projected = vectors[f"{name}s"][:, :num_keys]
    if source is not None and _are_projected(source[:num_keys], projected, projections, name):
        vectors["source"] = _pad_rows(source, num_keys)
    for part in ("keys", "values"):
        vectors[part] = _pad_rows(vectors[part], num_keys)
    return ReadVectors(**vectors, projections=projections, formula=calls[-1][0].formula)


def _maps_of(score: Score) -> dict[str, Tensor]:
    """Return the maps of states by a score, as "query", "key" and "query bias"; or none."""
    if score.num_heads is not None:
        return {}
    if isinstance(score, Concat):
        query, key = score.weight.split(
            (score.query_dim, score.weight.shape[1] - score.query_dim), dim=1
        )
        return {"query": query, "key": key}
    if not isinstance(score, Additive | General):
        return {}
    maps: dict[str, Tensor] = {"query": score.query_weight, "key": score.key_weight}
    if isinstance(score, Additive) and score.bias is not None:
        maps["query bias"] = score.bias
    return maps


def _formula(inputs: AttentionInputs, heads: MultiHead | None, *, has_maps: bool) -> ReadFormula:
    form, choice = inputs.form, inputs.choice
    is_product = isinstance(form, InnerProduct)
    beta = choice.beta if isinstance(choice, Soft) else None
    if isinstance(beta, Tensor):
        beta = float(beta.detach()) if beta.numel() == 1 else None
    maps = () if heads is None else (heads.query_norm, heads.positions)
    mapped = [_one_line(part) for part in maps if part is not None]
    if not has_maps and inputs.raw_query.data_ptr() != inputs.query.data_ptr():
        mapped.append(f"the map of {type(inputs.score).__name__}")
    return ReadFormula(
        score=_one_line(inputs.score),
        scale=form.scale if is_product else None,
        cap=form.cap if is_product else None,
        choice=_one_line(choice),
        beta=beta,
        is_additive=isinstance(form, TanhSum),
        mapped=", then ".join(mapped),
    )


def _one_line(module: nn.Module) -> str:
    return " ".join(repr(module).split())


def _source_of(calls: Sequence[tuple[CallVectors, int]], source_row: int) -> Tensor | None:
    """Return the items that keys are projected from: one of each step, or a row of a source."""
    extends = [call.extends for call, _ in calls]
    if all(extends):
        known = [(call.source, row) for call, row in calls if call.source is not None]
        return torch.cat([_row_of(source, row, 2) for source, row in known])
    source = calls[0][0].source
    if any(extends) or source is None or 1 < len(source) <= source_row:
        return None
    return _row_of(source, source_row, 2)


def _row_of(tensor: Tensor, row: int, num_axes: int) -> Tensor:
    """Return a row of a tensor ([batch, [head,]] item, size) with 2 or 3 axes."""
    if tensor.dim() > 2:
        tensor = tensor[row if len(tensor) > 1 else 0]
    return tensor[None] if tensor.dim() < num_axes else tensor


def _are_projected(
    source: Tensor, values: Tensor, projections: Mapping[str, Tensor], name: str
) -> bool:
    """Return True if keys or values (head, key, value_dim) are projected from these items.

    Another memory may have been projected since, or values from other items than keys.
    """
    weight = projections.get(name)
    if weight is None or source.shape != (values.shape[-2], weight.shape[1]):
        return False
    expected = nn.functional.linear(source, weight, projections.get(f"{name} bias"))
    actual = values.transpose(0, 1).flatten(1)
    return expected.shape == actual.shape and bool(
        (expected - actual).abs().max() <= _TOLERANCE * actual.abs().max()
    )


def _pad_rows(tensor: Tensor, count: int) -> Tensor:
    """Return (..., count, size): rows are cut, or NaN is added below."""
    missing = count - min(count, tensor.shape[-2])
    return nn.functional.pad(tensor[..., :count, :], (0, 0, 0, missing), value=math.nan)
