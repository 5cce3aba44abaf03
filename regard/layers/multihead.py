"""Multi-head attention: several reads in parallel, each with its own projections.

    head_h = attend(X' W_q^h, (X W_k^g, X W_v^g))      h = 1 .. l;  g = h, or a shared head
    out    = [head_1, ..., head_l] W_o                 or the heads alone, [head_1, ...]

X' are the queries, X the memory: layer(x_prime, x). X' = X is self-attention; another X is
cross-attention. Rows are items, [a, b] are rows side by side, and each W is (in, out); the layer
stores the transpose, as torch does: X' query.weight^T, with the rows of all heads in one matrix.
Grouped-query attention has fewer heads of keys and values than of queries: each serves l /
key_heads adjacent heads, and the key-value cache is smaller by the same factor. Multi-query
attention has one.

Norms of queries and keys apply to each head behind the projections, with parameters shared by the
heads. Gates multiply what the heads read, [head_1, ..., head_l] * sigmoid(X' W_G): a number for
each head, or for each of its numbers. Registers are learned pairs of keys and values of each head,
which every query reads beside those of the memory, whatever the mask and the positions.

Rotary positional encodings rotate queries and keys behind the norms: keys are at 0, 1, ... in the
order in which they were added, and the last query is at the last key.

A subclass may replace each of these steps, and keeps the others:

    project   items -> queries, keys and values of each head
    pairs     memory -> the keys and values that are read
    merge     the heads' results -> the vectors before W_o

Source: lectures, C.1, C.2, C.5 to C.8; vaswani2017, section 3.2.2; grouped queries ainslie2023,
multi-query shazeer2019; rotary su2024; norms of queries and keys henry2020, yang2025; gates
qiu2025; registers sukhbaatar2019 (persistent vectors), darcet2024.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.axes import check_integer, check_strided
from regard.attention.biases import Bias
from regard.attention.choices import Choice, Soft
from regard.attention.kernels import reference
from regard.attention.kernels.products import read_flat
from regard.attention.kernels.selection import MAX_SHORT
from regard.attention.masks import Causal, Mask
from regard.attention.masks.base import additive_mask
from regard.attention.memory import KeyValueCache, LinearState, Memory
from regard.attention.positions import Positions
from regard.attention.scores import ScaledDot, Score
from regard.attention.scores.base import map_all
from regard.compat.torch import is_eager, run_pre_hooks, runs_original_forward
from regard.layers.forms import (
    AttentionForm,
    LinearForm,
    NormForm,
    ReadForm,
    RotaryForm,
    form_of,
)
from regard.layers.linear import Linear, fused_linear
from regard.layers.positions.base import PositionalEncoding, Start
from regard.layers.read import Read, Role

Past = TypeVar("Past", KeyValueCache, LinearState)


class MultiHead(nn.Module):
    """Multi-head attention with l heads.

    Sizes are independent: query_dim of X', source_dim of X (default: query_dim), value_dim of the
    items that values are projected from (default: source_dim), head_dim of a head's queries
    (default: query_dim / l, rounded up), head_key_dim and head_value_dim of its keys and values
    (default: head_dim), output_dim (default: query_dim); key_heads (default: l) divides l. Only
    some scores compare queries and keys of unequal sizes: General, Additive and Concat, with
    num_heads=l for parameters per head.

    score:             default: ScaledDot. For additive attention use BareAdditive(head_dim,
                       num_heads=l): W_q^h and W_k^h are its projections already, and each head has
                       a vector v. choice, bias, kernel and role are those of `Read`.
    positions:         rotates queries and keys, in self-attention.
    qk_norm:           (size) -> norm of the queries and of the keys of a head, such as RMSNorm.
    gate:              "head": a gate for each head; "element": for each of its numbers.
    registers:         number of learned pairs that every query reads, too.
    output_projection: False leaves out W_o; the output is then l head_value_dim wide.
    Parameters: query (l head_dim, query_dim), key (key_heads head_key_dim, source_dim), value
                (key_heads head_value_dim, value_dim), output (output_dim, l head_value_dim), each
                with a bias unless projection_bias=False; output_bias: of W_o, if it differs;
                output_gate (l or l head_value_dim, query_dim); register_keys, register_values
                (key_heads, registers, size).
    Raises: TypeError or ValueError for sizes, score and positions that do not fit together.
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
        qk_norm: Callable[[int], nn.Module] | None = None,
        gate: Literal["none", "head", "element"] = "none",
        registers: int = 0,
        kernel: str = "auto",
        projection_bias: bool = True,
        output_bias: bool | None = None,
        output_projection: bool = True,
        role: Role | None = None,
    ):
        super().__init__()
        score = ScaledDot() if score is None else score
        check_integer("num_heads", num_heads, 1)
        key_heads = num_heads if key_heads is None else key_heads
        check_integer("key_heads", key_heads, 1)
        if num_heads % key_heads:
            raise ValueError(f"key_heads must divide num_heads={num_heads}, got {key_heads}")
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
            "head_key_dim": head_key_dim,
            "head_value_dim": head_value_dim,
            "output_dim": output_dim,
        }
        for name, size in sizes.items():
            check_integer(name, size, 1)
        if not output_projection and output_dim != heads_dim:
            raise ValueError(f"output_dim must be {heads_dim} without W_o, got {output_dim}")
        self.num_heads, self.key_heads = num_heads, key_heads
        read = Read(score, choice=choice, bias=bias, kernel=kernel, role=role)
        if score.num_heads not in (None, num_heads):
            raise ValueError(f"score must have num_heads={num_heads}, got {score}")
        if head_key_dim != head_dim and score.needs_equal_sizes:
            raise ValueError(
                f"head_key_dim must be head_dim={head_dim} with the score {type(score).__name__}, "
                f"got {head_key_dim}"
            )
        self.query = Linear(query_dim, num_heads * head_dim, bias=projection_bias)
        self.key = Linear(source_dim, key_heads * head_key_dim, bias=projection_bias)
        self.value = Linear(value_dim, key_heads * head_value_dim, bias=projection_bias)
        self.output: nn.Module = nn.Identity()
        if output_projection:
            output_bias = projection_bias if output_bias is None else output_bias
            self.output = Linear(heads_dim, output_dim, bias=output_bias)
        self.query_norm = None if qk_norm is None else qk_norm(head_dim)
        self.key_norm = None if qk_norm is None else qk_norm(head_key_dim)
        if gate not in ("none", "head", "element"):
            raise ValueError(f"gate must be none, head or element, got {gate!r}")
        self.output_gate: Linear | None = None
        if gate != "none":
            num_gates = num_heads if gate == "head" else heads_dim
            self.output_gate = Linear(query_dim, num_gates, bias=projection_bias)
        self.register_keys = _create_registers(registers, key_heads, head_key_dim)
        self.register_values = _create_registers(registers, key_heads, head_value_dim, std=0.02)
        self.read, self.positions = read, positions
        if positions is not None:
            self._check_rotation(positions)
        own = None if role is not None and role.kind == "cross" else self.create_bias()
        if own is not None:
            read.bias = own if bias is None else bias + own

    def create_bias(self) -> Bias | None:
        """Create a bias of a subclass, added to that of the positions; not in cross-attention."""

    def memory(
        self,
        source: Float[Tensor, "batch source source_dim"],
        mask: Mask | None = None,
        *,
        values: Float[Tensor, "batch source value_dim"] | None = None,
        start: Start = 0,
    ) -> Memory:
        """Project `source` to keys and values, each (batch, head, source, size).

        start: of the keys, for positions that rotate.
        """
        _, keys, own_values = self.project(None, source, values)
        return self._memory(keys, own_values, mask, start=start)

    def extend(
        self,
        memory: Past,
        source: Float[Tensor, "batch new source_dim"],
        *,
        values: Float[Tensor, "batch new value_dim"] | None = None,
    ) -> Past:
        """Append the keys and values of new items to the memory (key-value cache of a decoder)."""
        start, score = 0, self.read.score
        if isinstance(memory, KeyValueCache):
            if self._maps_keys and memory.mapped_by is not score:
                memory = memory.map_keys_with(score)  # as the new keys are
            if self.positions is not None:
                start = memory.length
        _, keys, own_values = self.project(None, source, values)
        new = self._memory(keys, own_values, None, start=start)
        return memory.extend(new.keys, new.values)

    def forward(
        self,
        query: Float[Tensor, "batch query query_dim"],
        memory: KeyValueCache
        | LinearState
        | Float[Tensor, "batch source source_dim"]
        | None = None,
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        bias: Bias | Tensor | None = None,
        start: Start | None = None,
    ) -> Float[Tensor, "batch query output_dim"]:
        """Return the output of every query.

        memory: keys and values, as `memory` or `extend` returned them; a tensor X: `memory(X,
                memory_mask)`; None: `memory(query, memory_mask)` (self-attention), with the three
                projections fused.
        bias:   of this call, in addition to that of the layer.
        start:  of the queries, for positions that rotate; None: the last query is at the last key.
        Raises: ValueError if memory_mask is given with keys and values.
        """
        check_strided("query", query)
        if isinstance(memory, Tensor):
            memory, memory_mask = self.memory(memory, memory_mask), None
        if memory is not None:
            if memory_mask is not None:
                raise ValueError("memory_mask must be None if memory is given, which has its own")
            if isinstance(memory, KeyValueCache):
                memory = self.pairs(memory)
            queries, _, _ = self.project(query, None)
            beta = self._short_beta(query, mask, memory) if bias is None else None
            if beta is not None and isinstance(memory, Memory):
                heads = self._read_once(queries, memory, beta)
            else:
                queries = self._rotate_query(queries, memory, start)
                heads = self._read(queries, memory, mask, bias)
            return self.output(self.merge(heads, query))
        queries, keys, values = self.project(query, query)
        has_more = memory_mask is not None or bias is not None
        beta = None if has_more else self._short_beta(query, mask)
        if beta is not None:
            heads = self._read_short(queries, keys, values, beta, mask)
        else:
            pairs = self.pairs(self._memory(keys, values, memory_mask))
            queries = self._rotate_query(queries, pairs)
            heads = self._read(queries, pairs, mask, bias)
        return self.output(self.merge(heads, query))

    def project(
        self, query: Tensor | None, source: Tensor | None, values: Tensor | None = None
    ) -> tuple[Any, Any, Any]:
        """Return queries, keys and values of each head, (batch, head, time, size).

        query, source: items; without one of them, its vectors are None. The same tensor twice:
                       self-attention.
        values:        items that become values, if they are not `source`.
        A subclass may return values of fewer heads than the keys, or None: its memory then holds
        the keys alone, and its `pairs` makes the values of them.
        """
        queries, keys = None, None
        if query is not None and source is query and values is None:
            queries, keys, values = fused_linear(query, self.query, self.key, self.value)
        elif query is not None:
            queries = self.query(query)
        if source is not None and keys is None:
            check_strided("source", source)
            if values is None:
                keys, values = fused_linear(source, self.key, self.value)
            else:
                check_strided("values", values)
                keys, values = self.key(source), self.value(values)
        if queries is not None:
            queries = _split_heads(queries, self.num_heads)
            queries = queries if self.query_norm is None else self.query_norm(queries)
        if keys is None or values is None:
            return queries, None, None
        keys = _split_heads(keys, self.key_heads)
        keys = keys if self.key_norm is None else self.key_norm(keys)
        return queries, keys, _split_heads(values, self.key_heads)

    def pairs(self, memory: KeyValueCache) -> KeyValueCache:
        """Return the keys and values that queries read: by default, those of the memory.

        A subclass returns `memory.with_pairs(keys, values)`. Its memory then holds keys that no
        score mapped; they are mapped when they are read.
        """
        return memory

    def merge(
        self, heads: Float[Tensor, "batch head query size"], query: Tensor
    ) -> Float[Tensor, "batch query heads"]:
        """Return [head_1, ..., head_l], times the gates: the vectors before W_o.

        query: the items X'.
        """
        if self.output_gate is None:
            return heads.transpose(1, 2).flatten(2)
        return (heads * self._gates(query)).transpose(1, 2).flatten(2)

    def decompose(
        self, query: Float[Tensor, "batch query query_dim"], memory: Memory
    ) -> Float[Tensor, "batch head query key output_dim"]:
        """Return what each key adds to the output through each head: a_hij W_o^h v_hj.

        Their sum over heads and keys is the output without the bias of W_o. Registers are keys
        behind those of the memory.
        """
        queries, _, _ = self.project(query, None)
        queries = self._rotate_query(queries, memory)
        inputs = self.read.prepare_inputs(queries, memory, registers=self._registers())
        inputs = inputs.repeat_heads()
        values = inputs.values[:, :, None]  # (batch, head, 1, key, size)
        if self.output_gate is not None:
            values = values * self._gates(query)[:, :, :, None]
        by_head = self._output_form().weight.unflatten(1, (self.num_heads, -1))
        projected = torch.einsum("bhqkv,ohv->bhqko", values, by_head)
        return reference.weights(inputs)[..., None] * projected

    def form(self) -> AttentionForm:
        query, key, value = (form_of(x, LinearForm) for x in (self.query, self.key, self.value))
        read = form_of(self.read, ReadForm, len(query.weight) // self.num_heads)
        rotary = None if self.positions is None else form_of(self.positions, RotaryForm)
        heads = self.num_heads, self.key_heads
        parts = query, key, value, self._output_form(), *heads, read, rotary
        norms = self.query_norm, self.key_norm
        query_norm, key_norm = (None if x is None else form_of(x, NormForm) for x in norms)
        gate = None if self.output_gate is None else form_of(self.output_gate, LinearForm)
        more = gate, self.register_keys, self.register_values
        return AttentionForm(*parts, query_norm, key_norm, *more)

    def _output_form(self) -> LinearForm:
        if type(self.output) is not nn.Identity:
            return form_of(self.output, LinearForm)
        weight = form_of(self.value, LinearForm).weight
        # The matrix that leaves the heads as they are.
        size = len(weight) // self.key_heads * self.num_heads
        return LinearForm(torch.eye(size, dtype=weight.dtype, device=weight.device), None)

    def _read(self, queries: Tensor, memory: Any, mask: Mask | None, bias: Any) -> Tensor:
        if isinstance(memory, tuple):
            raise TypeError(f"{type(self).__name__}.pairs must return memory.with_pairs(...)")
        if self.register_keys is None:
            return self.read(queries, memory, mask=mask, bias=bias)
        return self.read(queries, memory, mask=mask, bias=bias, registers=self._registers())

    def _registers(self) -> tuple[Tensor, Tensor] | None:
        keys, values = self.register_keys, self.register_values
        if keys is None or values is None:
            return None
        return keys if self.key_norm is None else self.key_norm(keys), values

    def _gates(self, query: Tensor) -> Tensor:
        """Return the gates (batch, head, query, 1 or size) of items."""
        assert self.output_gate is not None
        return torch.sigmoid(_split_heads(self.output_gate(query), self.num_heads))

    @property
    def _maps_keys(self) -> bool:
        """True if the score maps keys before they are stored, not those that `pairs` returns."""
        return type(self).pairs is MultiHead.pairs

    def _memory(
        self, keys: Tensor, values: Tensor | None, mask: Mask | None, *, start: Start = 0
    ) -> Memory:
        if self.positions is not None:
            self._check_rotation(self.positions)
            keys = self._rotate(self.positions, "rotate_keys", keys, start)
        values = keys[..., :0] if values is None else values
        if not self._maps_keys:
            return Memory(keys, values, mask)
        score = self.read.score
        return Memory(map_all(score, "map_keys", keys), values, mask, score)

    def _check_rotation(self, positions: PositionalEncoding) -> None:
        """Raise ValueError unless positions and score fit together; both may be replaced."""
        if not (positions.rotates and self.read.score.is_rotation_invariant):
            names = f"{type(positions).__name__} and {type(self.read.score).__name__}"
            raise ValueError(
                f"positions must rotate, and score be invariant to rotations, got {names}"
            )

    def _short_beta(
        self,
        query: Tensor,
        mask: Mask | None,
        memory: KeyValueCache | LinearState | None = None,
    ) -> float | None:
        """Return the choice's beta if default parts read few items, or one item reads, on a CPU.

        Then `_read_short` applies, or `_read_once` with a memory.
        """
        # First: a compiled or exported read has no condition on the number of items.
        if (
            not is_eager()
            or query.dtype != torch.float32
            or query.device.type != "cpu"
            or query.dim() != 3
            or query.numel() == 0
            or not (mask is None or type(mask) is Causal)
            or torch.is_autocast_enabled("cpu")
            or self.key_heads != self.num_heads
            or self.positions is not None
            or self.query_norm is not None
            or self.register_keys is not None
            or type(self).project is not MultiHead.project
            or not self._maps_keys
        ):
            return None
        read = self.read
        if memory is None:
            if not 1 < query.shape[1] <= MAX_SHORT:
                return None
        elif (
            type(memory) is not Memory
            or query.shape[1] != 1
            or mask is not None
            or memory.mask is not None
            or memory.mapped_by is not read.score
            or memory.size == 0
            or memory.keys.dtype != query.dtype
            or memory.keys.shape[:2] != (query.shape[0], self.num_heads)
        ):
            return None
        if (
            not runs_original_forward(Read, read)
            or type(read.score) is not ScaledDot
            or type(read.choice) is not Soft
            or isinstance(read.choice.beta, Tensor)
            or read.mask is not None
            or read.bias is not None
            or read.kernel != "auto"
        ):
            return None
        return read.choice.beta

    def _read_short(
        self, queries: Tensor, keys: Tensor, values: Tensor, beta: float, mask: Mask | None
    ) -> Tensor:
        """Compute what `read` does, without its preparation, which would take longer."""
        batch, heads, time, size = queries.shape
        added = None
        if mask is not None:
            positions = Positions(time, time, queries.device)
            added, _ = additive_mask(mask, positions, queries.dtype)
        flat = queries.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1)
        out = read_flat(*flat, added, 1 / math.sqrt(size) * beta)
        return out.view(batch, heads, time, -1)

    def _read_once(self, queries: Tensor, memory: Memory, beta: float) -> Tensor:
        """Compute what `read` does for one item, without its preparation."""
        scale = 1 / math.sqrt(queries.shape[-1]) * beta
        return scaled_dot_product_attention(queries, memory.keys, memory.values, scale=scale)

    def _rotate_query(
        self, queries: Tensor, memory: KeyValueCache | LinearState, start: Start | None = None
    ) -> Tensor:
        if self.positions is None or not isinstance(memory, KeyValueCache):
            return queries
        start = memory.length - queries.shape[-2] if start is None else start
        return self._rotate(self.positions, "rotate_query", queries, start)

    def _rotate(
        self,
        positions: PositionalEncoding,
        name: Literal["rotate_query", "rotate_keys"],
        vectors: Tensor,
        start: Start,
    ) -> Tensor:
        run_pre_hooks(positions, vectors, start)
        rotated = getattr(positions, name)(vectors, start)
        if rotated.shape != vectors.shape:
            sizes = f"{tuple(vectors.shape)}, got {tuple(rotated.shape)}"
            kind = type(positions).__name__
            raise ValueError(f"{kind}.{name} must keep the shape of queries and keys, {sizes}")
        return rotated


def _create_registers(
    count: int, heads: int, size: int, *, std: float = 1.0
) -> nn.Parameter | None:
    check_integer("registers", count, 0)
    return nn.Parameter(std * torch.randn(heads, count, size)) if count else None


def _split_heads(items: Tensor, num_heads: int) -> Tensor:
    """Return items (batch, time, dim) as (batch, head, time, dim of a head)."""
    batch, time, dim = items.shape
    return items.view(batch, time, num_heads, dim // num_heads).transpose(1, 2)
