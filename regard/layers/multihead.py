"""Multi-head attention: several reads in parallel, each with its own projections.

    head_h(X', X) = attend(W_q^h X', (W_k^g X, W_v^g X))            h = 1 .. l;  g = h, unless heads
    share keys out           = W_o [head_1; ...; head_l]                       or the heads alone,
                             [head_1; ...; head_l]

X' are the queries, X the memory. X' = X is self-attention, with a causal mask the decoder's masked
self-attention; another X is cross-attention. The projections of all heads are stacked in one
matrix.

Grouped-query attention has fewer heads of keys and values than of queries: each serves l /
key_heads adjacent heads, and the key-value cache, which decoding reads at every step, is smaller by
the same factor. Multi-query attention has one.

Rotary positional encodings rotate queries and keys behind their projections. The position of an
item is read off the memory: keys are at 0, 1, ... in the order in which they were added, and the
                             last query is at the last key.

`Attention` (regard.layers.attention) is the layer of one head without W_o.

Source: lectures, C.1, C.2, C.5 to C.8; vaswani2017, section 3.2.2; grouped queries ainslie2023,
multi-query shazeer2019; rotary su2024.
"""

from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.biases import Bias
from regard.attention.choices import Choice
from regard.attention.kernels import reference
from regard.attention.masks import Mask
from regard.attention.memory import KeyValueCache, Memory
from regard.attention.parts import check_part
from regard.attention.scores import ScaledDot, Score
from regard.layers.forms import AttentionForm, LinearForm, ReadForm, RotaryForm, form_of
from regard.layers.linear import Linear, fused_linear
from regard.layers.positions.base import PositionalEncoding
from regard.layers.read import Read, Role

Past = TypeVar("Past", bound=KeyValueCache)


class MultiHead(nn.Module):
    """Multi-head attention with l heads of sizes head_dim (queries), head_key_dim (keys) and
    head_value_dim (values).

    Sizes are independent: query_dim of X', source_dim of X (default: query_dim), value_dim of the
    items that values are
    projected from (default: source_dim), head_dim (default: query_dim / l, rounded up),
    head_key_dim and head_value_dim (default: head_dim), output_dim (default: query_dim); key_heads
    (default: l) divides l. Only some scores compare queries and keys of unequal sizes, as General,
    Additive and Concat do, with num_heads=l for parameters per head. score (default: ScaledDot),
    choice, bias, kernel and role are those of `Read`. For additive attention use
    BareAdditive(head_dim, num_heads=l): W_q^h and W_k^h are its projections already, and each head
    has a vector v. positions: rotates queries and keys, in self-attention. output_projection: False
    leaves out W_o; the output is then l head_value_dim wide.
    Parameters: query (l head_dim, query_dim), key (key_heads head_key_dim, source_dim), value
    (key_heads head_value_dim, value_dim), output (output_dim, l head_value_dim), each with a bias
    unless projection_bias=False. Raises: ValueError if a size is not an integer of at least 1,
    key_heads does not divide l, score has another number
            of heads, needs equal sizes where they differ, or is not invariant to rotations with
            `positions`, `positions` does not rotate, or output_dim is not l head_value_dim without
            output projection.
    """

    def __init__(
        self,
        query_dim: int,
        num_heads: int,
        *,
        key_heads: int | None = None,
        source_dim: int | None = None,
        value_dim: int | None = None,
        head_dim: int | None = None,
        head_key_dim: int | None = None,
        head_value_dim: int | None = None,
        output_dim: int | None = None,
        score: Score | None = None,
        choice: Choice | None = None,
        bias: Bias | None = None,
        positions: PositionalEncoding | None = None,
        kernel: str = "auto",
        projection_bias: bool = True,
        output_projection: bool = True,
        role: Role | None = None,
    ):
        super().__init__()
        _check_heads(num_heads, key_heads, score)
        if positions is not None:
            _check_positions(positions, score)
        if bias is not None and not isinstance(bias, Bias):
            raise TypeError(
                f"bias must be a Bias of the scores, got {bias!r}; for biases of the projections "
                f"use `projection_bias`"
            )
        key_heads = num_heads if key_heads is None else key_heads
        source_dim = query_dim if source_dim is None else source_dim
        value_dim = source_dim if value_dim is None else value_dim
        head_dim = -(-query_dim // num_heads) if head_dim is None else head_dim
        head_key_dim = head_dim if head_key_dim is None else head_key_dim
        head_value_dim = head_dim if head_value_dim is None else head_value_dim
        heads_dim = num_heads * head_value_dim
        if output_dim is None:
            output_dim = query_dim if output_projection else heads_dim
        sizes = {
            "query_dim": query_dim,
            "source_dim": source_dim,
            "value_dim": value_dim,
            "head_dim": head_dim,
        }
        sizes |= {
            "head_key_dim": head_key_dim,
            "head_value_dim": head_value_dim,
            "output_dim": output_dim,
        }
        for name, size in sizes.items():
            _check_size(name, size)
        if head_key_dim != head_dim and (score is None or score.needs_equal_sizes):
            raise ValueError(
                f"head_key_dim must be head_dim={head_dim} with the score {_name(score)}, got "
                f"{head_key_dim}; "
                "General, Additive and Concat compare queries and keys of unequal sizes"
            )
        if not output_projection and output_dim != heads_dim:
            raise ValueError(
                f"output_dim must be num_heads * head_value_dim = {num_heads} * {head_value_dim} = "
                f"{heads_dim} without "
                f"output projection, got {output_dim}"
            )
        self.num_heads = num_heads
        self.key_heads = key_heads
        self.query = Linear(query_dim, num_heads * head_dim, bias=projection_bias)
        self.key = Linear(source_dim, key_heads * head_key_dim, bias=projection_bias)
        self.value = Linear(value_dim, key_heads * head_value_dim, bias=projection_bias)
        output = (
            Linear(heads_dim, output_dim, bias=projection_bias)
            if output_projection
            else nn.Identity()
        )
        self.output: nn.Module = output
        self.read = Read(score, choice=choice, bias=bias, kernel=kernel, role=role)
        self.positions = positions

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Raises AttributeError for a part of the read, which is not read from
        this module."""
        if isinstance(value, Score | Choice | Mask | Bias) and name in (
            "score",
            "choice",
            "mask",
            "bias",
        ):
            raise AttributeError(
                f"{type(self).__name__} reads no attribute `{name}`: set `read.{name}`, of its Read"
            )
        super().__setattr__(name, value)

    def memory(
        self,
        source: Float[Tensor, "batch source source_dim"],
        mask: Mask | None = None,
        *,
        values: Float[Tensor, "batch source value_dim"] | None = None,
    ) -> Memory:
        """Project `source` to keys, and `source` or `values` to values: each (batch, head, source,
        size)."""
        return self._memory(*self._project(source, values), mask)

    def extend(
        self,
        memory: Past,
        source: Float[Tensor, "batch new source_dim"],
        *,
        values: Float[Tensor, "batch new value_dim"] | None = None,
    ) -> Past:
        """Append the keys and values of new items to the memory (key-value cache of a decoder)."""
        new = self._memory(
            *self._project(source, values),
            None,
            start=0 if self.positions is None else memory.length,
        )
        return memory.extend(new.keys, new.values)

    def forward(
        self,
        query: Float[Tensor, "batch query query_dim"],
        memory: KeyValueCache | Float[Tensor, "batch source source_dim"] | None = None,
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
    ) -> Float[Tensor, "batch query output_dim"]:
        """Return the output of every query.

        memory: keys and values, as `memory` or `extend` returned them; a tensor X: `memory(X,
                memory_mask)`; None: `memory(query, memory_mask)` (self-attention), with the three
                projections fused.
        Raises: ValueError if memory_mask is given with keys and values, or if items have another
                size than the projections take.
        """
        _check_width("query", query, self.query)
        if isinstance(memory, Tensor):
            memory, memory_mask = self.memory(memory, memory_mask), None
        if memory is not None:
            if memory_mask is not None:
                raise ValueError(
                    "memory_mask must be None if memory is given, which has a mask of its own"
                )
            return self._read_heads(self.query(query), memory, mask)
        for name, projection in (("key", self.key), ("value", self.value)):
            _check_width(
                "query", query, projection, f" ({name} projection); without a memory, X is X'"
            )
        projected, key, value = fused_linear(query, self.query, self.key, self.value)
        return self._read_heads(projected, self._memory(key, value, memory_mask), mask)

    def decompose(
        self, query: Float[Tensor, "batch query query_dim"], memory: Memory
    ) -> Float[Tensor, "batch head query key output_dim"]:
        """Return what each key adds to the output through each head: a_hij W_o^h v_hj.

        Their sum over heads and keys is the output without the bias of W_o.
        """
        inputs = self.read.prepare_inputs(
            self._split_query(self.query(query), memory), memory
        ).repeat_heads()
        by_head = self._output_form().weight.unflatten(1, (self.num_heads, -1))
        projected = torch.einsum("bhkv,ohv->bhko", inputs.values, by_head)
        return reference.weights(inputs)[..., None] * projected[:, :, None]

    def form(self) -> AttentionForm:
        """Return the form of this module (regard.layers.forms)."""
        query = form_of(self.query, LinearForm)
        return AttentionForm(
            query=query,
            key=form_of(self.key, LinearForm),
            value=form_of(self.value, LinearForm),
            output=self._output_form(),
            num_heads=self.num_heads,
            key_heads=self.key_heads,
            read=form_of(self.read, ReadForm, len(query.weight) // self.num_heads),
            rotary=None if self.positions is None else form_of(self.positions, RotaryForm),
        )

    def _output_form(self) -> LinearForm:
        if type(self.output) is not nn.Identity:
            return form_of(self.output, LinearForm)
        weight = form_of(self.value, LinearForm).weight
        size = (
            len(weight) // self.key_heads * self.num_heads
        )  # the matrix that leaves the heads as they are
        return LinearForm(torch.eye(size, dtype=weight.dtype, device=weight.device), None)

    def _project(self, source: Tensor, values: Tensor | None) -> tuple[Tensor, Tensor]:
        _check_width("source", source, self.key)
        _check_width("values", source if values is None else values, self.value)
        if values is None:
            key, value = fused_linear(source, self.key, self.value)
            return key, value
        return self.key(source), self.value(values)

    def _memory(
        self, key: Tensor, value: Tensor, mask: Mask | None, *, start: int | Tensor = 0
    ) -> Memory:
        keys = _split_heads(key, self.key_heads)
        if self.positions is not None:
            keys = self.positions.rotate(keys, start)
        return Memory(keys, _split_heads(value, self.key_heads), mask).map_keys_with(
            self.read.score
        )

    def _read_heads(self, query: Tensor, memory: KeyValueCache, mask: Mask | None) -> Tensor:
        out = self.read(self._split_query(query, memory), memory, mask=mask)
        return self.output(out.transpose(1, 2).flatten(2))  # (batch, query, output_dim)

    def _split_query(self, query: Tensor, memory: KeyValueCache) -> Tensor:
        queries = _split_heads(query, self.num_heads)
        if self.positions is not None:
            queries = self.positions.rotate(queries, memory.length - queries.shape[-2])
        return queries


def _check_heads(num_heads: int, key_heads: int | None, score: Score | None) -> None:
    _check_size("num_heads", num_heads)
    if key_heads is not None and (
        not isinstance(key_heads, int) or key_heads < 1 or num_heads % key_heads
    ):
        raise ValueError(f"key_heads must divide num_heads={num_heads}, got {key_heads}")
    if score is None:
        return
    check_part("score", score, Score, "ScaledDot()")
    if score.num_heads not in (None, num_heads):
        raise ValueError(f"score must have num_heads={num_heads}, got {score}")


def _check_size(name: str, size: object) -> None:
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {size!r}")


def _check_width(name: str, items: Tensor, projection: nn.Module, remark: str = "") -> None:
    """Raise ValueError if items (..., size) have another size than a linear projection takes."""
    if isinstance(projection, nn.Linear) and items.shape[-1] != projection.in_features:
        raise ValueError(
            f"{name} must be (..., {projection.in_features}){remark}, got shape "
            f"{tuple(items.shape)}"
        )


def _name(score: Score | None) -> str:
    return ScaledDot.__name__ if score is None else type(score).__name__


def _check_positions(positions: PositionalEncoding, score: Score | None) -> None:
    if not positions.rotates:
        raise ValueError(
            f"positions must rotate queries and keys, got {type(positions).__name__}; "
            "add other encodings to the items, or pass them as `bias`"
        )
    if score is not None and not score.is_rotation_invariant:
        raise ValueError(
            f"score must be invariant to rotations with {type(positions).__name__} positions, as "
            f"Dot, ScaledDot and "
            f"Cosine are, got {type(score).__name__}; use another score, or other positions"
        )


def _split_heads(items: Tensor, num_heads: int) -> Tensor:
    if items.dim() != 3:
        raise ValueError(
            f"projected items of MultiHead must be (batch, time, dim), got shape "
            f"{tuple(items.shape)}"
        )
    return items.unflatten(-1, (num_heads, -1)).transpose(1, 2)  # (batch, head, time, head's size)
