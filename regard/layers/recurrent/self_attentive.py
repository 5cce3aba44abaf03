"""Self-attentive recurrent cells, which read all their past states.

    rnn     h_t  = tanh(A x_t + C s + B c_{t-1} + b)                    c_0 = 0
            a_ti = align(h_i, h_t)                                      i = 1 .. t
            c_t  = sum_i softmax_i(a_t)_i h_i

    gru     r, z = sigmoid(A x_t + C s + B c_{t-1} + b)
            n    = tanh(A x_t + C s + b + r * (B c_{t-1} + b'))
            h_t  = (1 - z) * n + z * c_{t-1}                a_ti and c_t as those of the rnn

    lstm    a_ti = align(h_i, [x_t; h~_{t-1}])                          i = 1 .. t-1
            h~_t = sum_i softmax_i(a_t)_i h_i       c~_t = sum_i softmax_i(a_t)_i c_i
            i, f, o = sigmoid(A x_t + C s + B h~_t + b)      g = tanh(A x_t + C s + B h~_t + b)
            c_t  = f * c~_t + i * g                 h_t = o * tanh(c_t)

A plain cell (regard.layers.recurrent.cells) computes the new state, with the result of the read in
place of the previous state. s is the context that a decoder reads from its source (absent
elsewhere). align(h, q) is one of

    additive    v . tanh(W_k h + W_q q)
    concat      v . tanh(W [h; q])          option 1 of the lectures; W = [W_k W_q]
    general     <W_k h, W_q q>              option 2 of the lectures
    scaled-dot  <W_k h, W_q q> / sqrt(size)
    dot         <h, q>                      lstm: <h, W_q q>, as its query is no state

where W_q = [W_x W_h~] for the two parts of the lstm's query.

With recency="learned" scores have a bias by the distance of the state in steps (RelativeBias):
a_ti + b[last - i], last = t for an rnn, t - 1 for an lstm. Initially b[0] = INITIAL_RECENCY_BIAS =
7 and the rest is 0, so that training starts from nearly a plain cell: the last state has the weight
e^7 / (e^7 + n - 1) of n equal scores. The bias is ours (recency="none": none, as in the paper).

The past is a Memory that grows by one pair per step, with values [h; c]. An lstm reads before it
computes the new state, so that its first step reads nothing and has h~_1 = c~_1 = 0. The code
released with cheng2016 omits W_h~ h~_{t-1} in the lstm's score (feeds_back=False). The gru is ours.

Cost:    time O(t size) for step t and O(time^2 size) for all; gradients copy the past.
Source:  lectures, B.11 (rnn), B.5 and B.6 (alignments); cheng2016, section 3.1, equations 5 to 10
         (lstm, additive); the code released with it. b: raffel2020, section 2.1, and its initial
         values are ours.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from regard.attention.biases import RelativeBias
from regard.attention.choices import Choice
from regard.attention.masks import FilledSlots
from regard.attention.memory import KeyValueCache, Memory, StaticMemory, keep_last
from regard.attention.scores import BareAdditive, Dot, ScaledDot, Score
from regard.compat.torch import run_pre_hooks, scan
from regard.layers.read import Read, Role
from regard.layers.recurrent.cells import CELLS, CellState, xavier_gates_

_SCORES: dict[str, Callable[[int], Score]] = {
    "additive": BareAdditive,
    "concat": BareAdditive,
    "general": lambda _: Dot(),
    "dot": lambda _: Dot(),
    "scaled-dot": lambda _: ScaledDot(),
}
"""Score of mapped vectors of a size, by the name of the alignment."""

INITIAL_RECENCY_BIAS = 7.0
"""Initial bias of the last state's score where recency is learned."""


class Past(NamedTuple):
    """State of a layer after some steps; immutable."""

    output: Float[Tensor, "batch hidden"]
    """h_t."""
    read: Float[Tensor, "batch parts_hidden"]
    """Result of the last read: c_t of an rnn or gru, [h~_t; c~_t] of an lstm."""
    memory: KeyValueCache | None
    """All states so far: keys W_k h_i, values h_i, or [h_i; c_i]. None before the first step."""

    def slide(self, window: int) -> Self:
        """Return the state whose memory keeps the last `window` states only, in later steps too."""
        return self if self.memory is None else self._replace(memory=keep_last(self.memory, window))

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        output, read = self.output.index_select(0, index), self.read.index_select(0, index)
        return type(self)(output, read, None if self.memory is None else self.memory.select(index))


class SelfAttentiveCell(nn.Module):
    """One step of a self-attentive layer with a cell and an alignment, `score`; formulas above.

    size: that of mapped states and queries; with score dot it must be hidden.
    Parameters: those of the attribute cell, the plain one; key_weight W_k (size, hidden);
    query_weight W_q (size, hidden) of an rnn or gru, W_x (size, input_dim) of an lstm;
    feedback_weight W_h~ (size, hidden) of an lstm that feeds back, else None; read.score.v (size),
    if the score is additive or concat; read.bias.table b (32), if recency is learned. With score
    dot, key_weight is None, and so is query_weight of an rnn or gru.
    choice: returns the choice of the read, given its score; softmax if not given.
    """

    def __init__(
        self,
        input_dim: int,
        hidden: int,
        size: int,
        *,
        cell: str,
        context_dim: int = 0,
        score: str = "additive",
        choice: Callable[[Score], Choice | None] | None = None,
        feeds_back: bool = True,
        recency: str = "none",
        kernel: str = "auto",
        role: Role | None = None,
    ):
        super().__init__()
        self.cell = CELLS[cell](input_dim, hidden, context_dim=context_dim)
        self.hidden, self.size, self.reads_first = hidden, size, cell == "lstm"
        align = _SCORES[score](size)
        bias = None
        if recency == "learned":
            bias = RelativeBias(None, two_sided=False)
            nn.init.constant_(bias.table[:1], INITIAL_RECENCY_BIAS)
        own = None if choice is None else choice(align)
        self.read = Read(align, choice=own, bias=bias, kernel=kernel, role=role)
        keys = [] if score == "dot" else [hidden]
        queries = [input_dim, hidden][: 1 + feeds_back] if self.reads_first else keys
        weights = _weights(size, keys + queries, as_one=score == "concat")
        self.key_weight = next(weights) if keys else None
        self.query_weight = next(weights) if queries else None
        self.feedback_weight = next(weights, None)

    def begin(self, rows: int) -> Past:
        """Return the initial state of `rows` rows: zeros and no memory."""
        zero = self.cell.bias.new_zeros(rows, self.hidden)
        # Parameters of the read have a zero gradient, not none, where nothing is read.
        for parameter in self.parameters():
            zero = zero + parameter.flatten()[:0].sum()
        return Past(zero, zero.repeat(1, self.cell.parts), None)

    def init_from(self, final: CellState) -> Past:
        """Return a past that holds the final state of an encoder layer."""
        run_pre_hooks(self, *final)
        read = torch.zeros_like(torch.cat(final, -1)) if self.reads_first else final[0]
        return Past(final[0], read, self._extend_memory(None, final))

    def project(self, items: Float[Tensor, "*batch input_dim"]) -> Float[Tensor, "*batch columns"]:
        """Return the terms in x for any number of items: A x + b, and W_x x (lstm)."""
        run_pre_hooks(self, items)
        gates = self.cell.project(items)
        return torch.cat((gates, _map(items, self.query_weight)), -1) if self.reads_first else gates

    def forward(
        self,
        projected: Float[Tensor, "batch columns"],
        past: Past,
        *,
        context: Float[Tensor, "batch context_dim"] | None = None,
    ) -> Past:
        """Return the past after an input x, where `projected` is project(x) and `context` is s."""
        if not self.reads_first:
            state = self.cell(projected, (past.read,), context=context)
            memory = self._extend_memory(past.memory, state)
            read = self._read_past(_map(state[0], self.query_weight), memory)
            return Past(state[0], read, memory)
        gates, query = projected.split((projected.shape[-1] - self.size, self.size), -1)
        read = past.read
        if past.memory is not None:
            if self.feedback_weight is not None:
                query = torch.addmm(query, read[:, : self.hidden], self.feedback_weight.t())
            read = self._read_past(query, past.memory)
        state = self.cell(gates, read.chunk(2, -1), context=context)
        return Past(state[0], read, self._extend_memory(past.memory, state))

    def run(
        self, items: Float[Tensor, "batch time input_dim"]
    ) -> tuple[Float[Tensor, "batch time hidden"], ...]:
        """Return the states after each item of a batch of sequences, part by part (h, then c)."""
        if torch.compiler.is_exporting():
            return self._scan(self.project(items))
        past = self.begin(items.shape[0])
        for projected in self.project(items).unbind(1):
            past = self(projected, past)
        if past.memory is None:
            return (items.new_zeros(*items.shape[:2], self.hidden),) * self.cell.parts
        return past.memory.values.chunk(self.cell.parts, -1)

    def _scan(self, projected: Tensor) -> CellState:
        """Return what `run` does, in an exported program: the past is in slots for all items."""

        def step(state: tuple[Tensor, ...], projected: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
            read, keys, values, length = state
            keys, values = keys.clone(), values.clone()
            slots = StaticMemory(keys, values, length, FilledSlots(), self.read.score)
            past = self(projected, Past(read, read, slots))  # no step uses the last output
            return (past.read, keys, values, length + 1), past.output.clone()

        read = projected.new_zeros(projected.shape[0], self.cell.parts * self.hidden)
        sizes = self.size, read.shape[1]
        keys, values = (projected.new_zeros(*projected.shape[:2], size) for size in sizes)
        start = read, keys, values, read.new_zeros((), dtype=torch.int64)
        (_, _, values, _), _ = scan(step, start, projected)
        return values.chunk(self.cell.parts, -1)

    def extra_repr(self) -> str:
        return f"size={self.size}, feeds_back={self.feedback_weight is not None}"

    def _extend_memory(self, memory: KeyValueCache | None, state: CellState) -> KeyValueCache:
        """Append the new state to the memory, in the dtype of the weights."""
        dtype = self.cell.bias.dtype
        keys = _map(state[0], self.key_weight).to(dtype).unsqueeze(1)
        values = torch.cat(state, -1).to(dtype).unsqueeze(1)
        if memory is None:
            return Memory(keys, values, mapped_by=self.read.score)
        return memory.extend(keys, values)

    def _read_past(self, query: Tensor, memory: KeyValueCache) -> Tensor:
        return self.read(query.unsqueeze(1).to(memory.keys.dtype), memory).squeeze(1)


def _weights(rows: int, columns: list[int], *, as_one: bool) -> Iterator[nn.Parameter]:
    """Return matrices with these numbers of columns; as_one: initialized side by side."""
    if as_one:
        whole = xavier_gates_(torch.empty(rows, sum(columns)), 1)
        return (nn.Parameter(part.clone()) for part in whole.split(columns, 1))
    return (nn.Parameter(xavier_gates_(torch.empty(rows, number), 1)) for number in columns)


def _map(vectors: Tensor, weight: Tensor | None) -> Tensor:
    return vectors if weight is None else linear(vectors, weight)
