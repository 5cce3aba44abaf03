"""The recurrent core: an encoder, and a decoder that reads the encoder's states at every step.

    h_1 .. h_n = encoder(x)                                  the memory; its keys are mapped once a sentence
    s_0        = tanh(W h_final + b)                         what plain seq2seq hands over, and no more
    s_j        = cell([x'_j; c_{j-1}], s_{j-1})              rnn: tanh(A' [x'_j; s_{j-1}; c_{j-1}] + b)
    c_j        = sum_i alpha_ij h_i                          alpha_.j = softmax_i score(s_j, h_i), anew at every step
    hidden_j   = tanh(W_o [s_j; c_j; x'_j] + b_o)            what the output layer sees

x'_j is the previous output. c_0 is read with s_0. Bahdanau's alignment for step j uses s_{j-1}: that is our c_{j-1},
which enters s_j here as it does there. Without attention there is no c: the decoder knows only s_0.

Source: lectures, B; bahdanau2015 (additive, "option 1"); luong2015 (general and dot, "option 2"); sutskever2014 (none).
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.attention.memory import Memory
from regard.attention.scores import Additive, Dot, General, ScaledDot, Score
from regard.layers.dropout import Dropout
from regard.layers.read import Read
from regard.layers.recurrent import CELLS, CellState
from regard.layers.recurrent_encoder import RecurrentEncoder
from regard.models.config import RecurrentConfig
from regard.models.cores.core import Core

__all__ = ["RecurrentCore", "RecurrentState"]


@dataclass(frozen=True, eq=False)
class RecurrentState:
    """The decoder's cells, what it read last, and the memory it reads (neither without attention)."""

    cells: tuple[CellState, ...]
    context: Tensor | None
    memory: Memory | None

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
    """Encoder and decoder of config.layers layers; see RecurrentConfig for the sizes."""

    def __init__(self, config: RecurrentConfig, *, dropout: float = 0.0):
        super().__init__()
        self.width = width = config.width
        hidden = config.hidden
        num_decoder = config.layers if config.decoder_layers is None else config.decoder_layers
        score = _score(config)
        self.encoder = RecurrentEncoder(
            width, hidden, cell=config.cell, layers=config.layers, directions=config.directions, dropout=dropout
        )
        self.read = None if score is None else Read(score, kernel=config.kernel)
        context_dim = 0 if score is None else hidden
        make = CELLS[config.cell]
        self.cells = nn.ModuleList(
            make(hidden, input_dim=hidden if layer else width, context_dim=0 if layer else context_dim)
            for layer in range(num_decoder)
        )
        self.bridge = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(num_decoder))
        self.readout = nn.Linear(hidden + context_dim + width, width)
        self.dropout = Dropout(dropout)

    def start(self, source: Padded) -> RecurrentState:
        """Run the encoder; map the memory's keys; hand the final states over; read once, with s_0."""
        encoded = self.encoder(source)
        cells = []
        for layer, (cell, bridge) in enumerate(zip(self.cells, self.bridge, strict=True)):
            first = torch.tanh(bridge(encoded.finals[min(layer, len(encoded.finals) - 1)]))
            cells.append(cell.first(first))
        state = RecurrentState(tuple(cells), None, None)
        if self.read is None:
            return state
        states = self.dropout(encoded.states)
        memory = Memory(states, states, source.mask).map_keys_with(self.read.score)
        return replace(state, memory=memory, context=self._look(cells[-1], memory))

    def forward(
        self, targets: Float[Tensor, "batch target model"], state: RecurrentState
    ) -> Float[Tensor, "batch target model"]:
        """All targets, which are known: what concerns them alone takes one product before and after the loop."""
        seen = []
        for projected in self.cells[0].project(targets).unbind(1):
            state = self._advance(projected, state)
            seen.append(self._seen(state))
        return self._write(torch.stack(seen, 1), targets)

    def step(
        self, target: Float[Tensor, "rows model"], state: RecurrentState
    ) -> tuple[Float[Tensor, "rows model"], RecurrentState]:
        """One target more a row."""
        state = self._advance(self.cells[0].project(target), state)
        return self._write(self._seen(state), target), state

    def _advance(self, projected: Tensor, state: RecurrentState) -> RecurrentState:
        """s_j from s_{j-1} and c_{j-1}, in every layer; then c_j."""
        cells = [self.cells[0](projected, state.context, state.cells[0])]
        for cell, before in zip(self.cells[1:], state.cells[1:], strict=True):
            cells.append(cell(cell.project(self.dropout(cells[-1][0])), None, before))
        context = None if state.memory is None else self._look(cells[-1], state.memory)
        return replace(state, cells=tuple(cells), context=context)

    def _look(self, cell: CellState, memory: Memory) -> Tensor:
        assert self.read is not None
        return self.read(cell[0].unsqueeze(1), memory).squeeze(1)  # (batch, hidden)

    def _seen(self, state: RecurrentState) -> Tensor:
        """[s_j; c_j]."""
        top = state.cells[-1][0]
        return top if state.context is None else torch.cat((top, state.context.to(top.dtype)), -1)

    def _write(self, seen: Tensor, targets: Tensor) -> Tensor:
        both = torch.cat((seen, targets.to(seen.dtype)), -1)
        return torch.tanh(self.readout(self.dropout(both)))


def _score(config: RecurrentConfig) -> Score | None:
    hidden = config.hidden
    if config.attention == "additive":
        return Additive(hidden, hidden, config.attention_hidden)
    if config.attention == "general":
        return General(hidden, hidden, config.attention_hidden)
    return {"none": None, "dot": Dot(), "scaled-dot": ScaledDot()}[config.attention]
