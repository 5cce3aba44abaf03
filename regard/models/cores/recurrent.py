"""The recurrent core: an encoder, and a decoder that reads the encoder's states at every step.

    h_1 .. h_n = encoder(x)                           the memory; its keys are mapped once a sentence
    s_0        = h_n, or tanh(W [h_n; g_1] + b)       handed over (if the encoder has one direction, or two)
    s_j        = cell([x'_j; c_{j-1}], s_{j-1})       rnn: s_j = tanh(A' [x'_j; s_{j-1}; c_{j-1}] + b)
    c_j        = sum_i alpha_ij h_i                   alpha_.j = softmax_i score(s_j, h_i), anew at every step
    hidden_j   = tanh(W_o [s_j; c_j; x'_j] + b_o)     what a writer turns into scores of y_j

x'_j is the previous output, x'_1 the start symbol. `start` reads once, c_0 with s_0; then each step reads
once, and the weights of its read, those of c_j, are where hidden_j looked. (Bahdanau aligns step j with
s_{j-1}: that is our c_{j-1}, which enters s_j here as it does there.) Attention "none" is plain seq2seq: no
context anywhere, and s_0 is all that the decoder knows of the source.

With several layers the lowest is fed [x'_j; c_{j-1}], and the top one's state is the query. A decoder layer
starts from the encoder layer at its depth, counted from the top; an lstm's cell from W' [cells] + b'.

Source: lectures, B; sutskever2014 (none); bahdanau2015 (additive, "option 1"); luong2015 (rest, "option 2");
cosine graves2014.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.choices import Choice, Soft
from regard.attention.masks import Padded
from regard.attention.memory import Memory
from regard.attention.scores import Additive, Concat, Dot, General, ScaledDot, Score
from regard.attention.scores_more import Cosine, Location
from regard.layers.dropout import Dropout
from regard.layers.read import Read
from regard.layers.recurrent import CELLS, Cell, CellState
from regard.layers.recurrent_encoder import Encoded, RecurrentEncoder
from regard.models.config import RecurrentConfig
from regard.models.cores.core import Core

__all__ = ["Handover", "RecurrentCore", "RecurrentState"]


@dataclass(frozen=True, eq=False)
class RecurrentState:
    """The decoder after some steps, and the memory it reads."""

    cells: tuple[CellState, ...]
    """State of each decoder layer; the top one's output is s_j."""
    context: Float[Tensor, "rows hidden"] | None
    """c_j; None without attention."""
    memory: Memory | None
    """The encoder's states with their keys mapped; None without attention."""

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        """Those rows of everything."""
        memory = None if self.memory is None else self.memory.select(index)
        return replace(self.reorder(index), memory=memory)

    def reorder(self, index: Int[Tensor, " rows"]) -> Self:
        """Those rows of the decoder's own state."""
        cells = tuple(tuple(part.index_select(0, index) for part in cell) for cell in self.cells)
        context = None if self.context is None else self.context.index_select(0, index)
        return replace(self, cells=cells, context=context)


class RecurrentCore(Core):
    """Encoder and decoder of config.cell; see RecurrentConfig for the sizes.

    dropout: in training, on the encoder's states, between layers, and on what the readout is fed.
    decodes=False: the encoder alone. encodes=False: the decoder alone, without attention.
    in_order=False: the decoder answers sets of queries, each by one step of its own from a state of zeros.
    """

    def __init__(
        self,
        config: RecurrentConfig,
        *,
        dropout: float = 0.0,
        encodes: bool = True,
        decodes: bool = True,
        in_order: bool = True,
    ):
        super().__init__()
        self.in_order = in_order
        self.width = width = config.width
        self.memory_dim = hidden = config.hidden
        num_decoder = config.layers if config.decoder_layers is None else config.decoder_layers
        num_decoder = num_decoder if decodes else 0
        self.encoder = (
            RecurrentEncoder(
                width,
                hidden,
                cell=config.cell,
                layers=config.layers,
                directions=config.directions,
                dropout=dropout,
            )
            if encodes
            else nn.Identity()
        )
        self.cell = config.cell
        cell = CELLS[config.cell]
        # A state of one direction is the decoder's as it is.
        num_handovers = num_decoder if config.directions == 2 and encodes and in_order else 0
        self.handovers = nn.ModuleList(Handover(hidden, parts=cell.parts) for _ in range(num_handovers))
        score = _score(config) if decodes and encodes else None
        self.read = None if score is None else Read(score, choose=_choice(config), kernel=config.kernel)
        context_dim = 0 if score is None else hidden
        self.cells = nn.ModuleList(
            cell(hidden, hidden) if layer else cell(width, hidden, context_dim=context_dim)
            for layer in range(num_decoder)
        )
        self.readout = _linear(hidden + context_dim + width, width) if decodes else nn.Identity()
        self.dropout = Dropout(dropout)

    def blocks(self) -> list[nn.Module]:
        """The encoder; the decoder's parts are used at every step."""
        return [self.encoder]

    def encode(self, source: Padded) -> Padded:
        """The encoder's states (batch, source, hidden)."""
        return source._replace(items=self.dropout(self.encoder(source).states))

    def answer(
        self, queries: Float[Tensor, "batch query model"], encoded: Padded
    ) -> list[Float[Tensor, "batch query model"]]:
        """Each query takes a step from zeros, in every layer, and its state reads what was encoded."""
        if self.in_order:
            raise ValueError("this core was made for targets in order: build it with in_order=False")
        rows, count, _ = queries.shape
        zero = encoded.items.new_zeros(rows * count, self.memory_dim)
        state = zero
        for layer, cell in enumerate(self._decoder):
            projected = cell.project(queries.flatten(0, 1) if layer == 0 else self.dropout(state))
            context = zero if layer == 0 and self.read is not None else None
            state = cell(projected, (zero,) * cell.parts, context=context)[0]
        outputs = state.unflatten(0, (rows, count))
        if self.read is not None:
            memory = Memory(encoded.items, encoded.items, encoded.mask).map_keys_with(self.read.score)
            outputs = torch.cat((outputs, self.read(outputs, memory).to(outputs.dtype)), -1)
        return [self._read_out(outputs, queries)]

    def begin(self, rows: int) -> RecurrentState:
        """Zero states in every layer, and nothing to read."""
        parts, zero = CELLS[self.cell].parts, next(self.readout.parameters()).new_zeros(rows, self.memory_dim)
        return RecurrentState(tuple((zero,) * parts for _ in self.cells), context=None, memory=None)

    def start(self, source: Padded) -> RecurrentState:
        """Encode items (batch, source, width); map the keys; hand the final states over; read with s_0."""
        encoded = self.encoder(source)
        cells = self._handed_over(encoded)
        if self.read is None:
            return RecurrentState(cells, context=None, memory=None)
        states = self.dropout(encoded.states)
        memory = Memory(states, states, source.mask).map_keys_with(self.read.score)
        return RecurrentState(cells, context=self._context(cells, memory), memory=memory)

    def forward(
        self, targets: Float[Tensor, "batch target model"], state: RecurrentState
    ) -> Float[Tensor, "batch target model"]:
        """All targets in turn; what concerns them alone is one product before the loop and one after it."""
        outputs = []
        for projected in self._decoder[0].project(targets).unbind(1):
            state = self._advance(projected, state)
            outputs.append(_output(state))
        return self._read_out(torch.stack(outputs, 1), targets)

    def step(
        self, target: Float[Tensor, "rows model"], state: RecurrentState
    ) -> tuple[Float[Tensor, "rows model"], RecurrentState]:
        """One target more a row."""
        state = self._advance(self._decoder[0].project(target), state)
        return self._read_out(_output(state), target), state

    @property
    def _decoder(self) -> list[Cell]:
        """The decoder's layers, lowest first."""
        return cast("list[Cell]", list(self.cells))

    def _handed_over(self, encoded: Encoded) -> tuple[CellState, ...]:
        """s_0 of every decoder layer."""
        num_decoder = len(self.cells)
        surplus = len(encoded.finals) - num_decoder
        finals = tuple(encoded.finals[max(0, layer + surplus)] for layer in range(num_decoder))
        if len(self.handovers) == 0:
            return finals
        return tuple(handover(final) for handover, final in zip(self.handovers, finals, strict=True))

    def _advance(self, projected: Tensor, state: RecurrentState) -> RecurrentState:
        """s_j in every layer, then c_j; `projected` is what the lowest cell makes of x'_j."""
        lowest, *upper = self._decoder
        cells = [lowest(projected, state.cells[0], context=state.context)]
        for cell, before in zip(upper, state.cells[1:], strict=True):
            cells.append(cell(cell.project(self.dropout(cells[-1][0])), before))
        context = None if state.memory is None else self._context(cells, state.memory)
        return replace(state, cells=tuple(cells), context=context)

    def _context(self, cells: tuple[CellState, ...] | list[CellState], memory: Memory) -> Tensor:
        """What the top layer's state reads."""
        assert self.read is not None
        return self.read(cells[-1][0].unsqueeze(1), memory).squeeze(1)  # (batch, hidden)

    def _read_out(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """tanh(W_o [s; c; x'] + b_o), for one step or for all."""
        everything = torch.cat((outputs, targets.to(outputs.dtype)), -1)
        return torch.tanh(self.readout(self.dropout(everything)))


class Handover(nn.Module):
    """From an encoder layer's final state to a decoder layer's first: tanh(W s + b), W' cell + b' (lstm)."""

    def __init__(self, hidden: int, *, parts: int):
        super().__init__()
        self.maps = nn.ModuleList(_linear(hidden, hidden) for _ in range(parts))

    def forward(self, final: CellState) -> CellState:
        """The first state."""
        output, *rest = (linear(part) for linear, part in zip(self.maps, final, strict=True))
        return torch.tanh(output), *rest


def _linear(input_dim: int, output_dim: int) -> nn.Linear:
    linear = nn.Linear(input_dim, output_dim)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def _output(state: RecurrentState) -> Tensor:
    """[s_j; c_j], or s_j without attention."""
    top = state.cells[-1][0]
    return top if state.context is None else torch.cat((top, state.context.to(top.dtype)), -1)


def _score(config: RecurrentConfig) -> Score | None:
    hidden = config.hidden
    makers: dict[str, Callable[[], Score | None]] = {
        "none": lambda: None,
        "additive": lambda: Additive(hidden, hidden, config.attention_hidden),
        "concat": lambda: Concat(hidden, hidden, config.attention_hidden),
        "general": lambda: General(hidden, hidden, config.attention_hidden),
        "dot": Dot,
        "scaled-dot": ScaledDot,
        "cosine": Cosine,
        "location": lambda: Location(hidden, config.max_positions),
    }
    if config.attention not in makers:
        raise ValueError(f"attention must be one of {', '.join(makers)}, but is {config.attention!r}")
    return makers[config.attention]()


def _choice(config: RecurrentConfig) -> Choice | None:
    # Cosines lie in [-1, 1], where a softmax is nearly flat: how much to make of them is learnt.
    return Soft(10.0, learn=True) if config.attention == "cosine" else None
