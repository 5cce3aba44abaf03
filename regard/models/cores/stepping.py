"""What the cores have in common that step: an encoder, and a decoder that reads the encoder's states at every step.

    h_1 .. h_n = encoder(x)                           the memory; its keys are mapped once a sentence
    s_0        = h_n, or tanh(W [h_n; g_1] + b)       handed over (if the encoder has one direction, or two)
    s_j        = cell([x'_j; c_{j-1}], s_{j-1})       rnn: s_j = tanh(A' [x'_j; s_{j-1}; c_{j-1}] + b)
    c_j        = sum_i alpha_ij h_i                   alpha_.j = softmax_i score(s_j, h_i), anew at every step
    hidden_j   = tanh(W_o [s_j; c_j; x'_j] + b_o)     what a writer turns into scores of y_j

x'_j is the previous output, x'_1 the start symbol. `start` reads once, c_0 with s_0; then each step reads
once, and the weights of its read, those of c_j, are where hidden_j looked. (Bahdanau aligns step j with
s_{j-1}: that is our c_{j-1}, which enters s_j here as it does there.) Attention "none" is plain seq2seq: no
context anywhere, and s_0 is all that the decoder knows of the source.

The cells are plain recurrent ones (regard.models.cores.recurrent), or such as read their own past besides
(regard.models.cores.self_attentive): then s_{j-1} is what they read there.

With several layers the lowest is fed [x'_j; c_{j-1}], and the top one's state is the query. A decoder layer
starts from the encoder layer at its depth, counted from the top; an lstm's cell from W' [cells] + b'.

Source: lectures, B; sutskever2014 (none); bahdanau2015 (additive, "option 1"); luong2015 (rest, "option 2");
cosine graves2014.
"""

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.choices import Choice, Soft
from regard.attention.masks import Padded, Padding
from regard.attention.memory import Memory
from regard.attention.scores import Additive, Concat, Dot, General, ScaledDot, Score
from regard.attention.scores_more import Cosine, Location
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.read import Read
from regard.layers.recurrent import CELLS, Cell, CellState, GRUCell
from regard.layers.recurrent_encoder import Encoded
from regard.layers.recurrent_run import Before, GRUWeights, ReadWeights, Source, decode, is_compiled_for, is_unheard
from regard.layers.self_attentive import Past, SelfAttentiveCell
from regard.models.config import RecurrentConfig, SelfAttentiveConfig
from regard.models.cores.core import Core
from regard.telling import is_heard

AnyCell = Cell | SelfAttentiveCell
AnyConfig = RecurrentConfig | SelfAttentiveConfig


@dataclass(frozen=True, eq=False)
class SteppingState:
    """The decoder after some steps, and the memory it reads."""

    cells: tuple[CellState | Past, ...]
    """State of each decoder layer, its output first; the top one's is s_j."""
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
        cells = tuple(_rows_of(cell, index) for cell in self.cells)
        context = None if self.context is None else self.context.index_select(0, index)
        return replace(self, cells=cells, context=context)


class SteppingCore(Core, ABC):
    """An encoder, and a decoder of cells, for the sizes in the config.

    encoder: gives Encoded states of size config.hidden; None for a decoder that reads no source. It is made before
             the decoder's parts, so that a seed gives it the same weights with a decoder and without.
    cell:    makes a layer's cell from the size of its input and that of the context it is fed (0: none).
    dropout: in training, on the encoder's states, between layers, and on what the readout is fed.
    decodes: False leaves the encoder alone.
    in_order: False lets the decoder answer sets of queries, each by one step of its own from a state of zeros.
    """

    def __init__(
        self,
        config: AnyConfig,
        *,
        encoder: nn.Module | None,
        cell: Callable[[int, int], AnyCell],
        dropout: float,
        decodes: bool,
        in_order: bool,
    ):
        super().__init__()
        self.in_order = in_order
        self.width = width = config.width
        self.memory_dim = hidden = config.hidden
        num_decoder = config.layers if config.decoder_layers is None else config.decoder_layers
        num_decoder = num_decoder if decodes else 0
        encodes = encoder is not None
        self.encoder = nn.Identity() if encoder is None else encoder
        # A state of one direction is the decoder's as it is.
        num_handovers = num_decoder if config.directions == 2 and encodes and in_order else 0
        parts = CELLS[config.cell].parts
        self.handovers = nn.ModuleList(Handover(hidden, parts=parts) for _ in range(num_handovers))
        score = _score(config) if decodes and encodes else None
        self.read = None if score is None else Read(score, choose=_choice(config), kernel=config.kernel)
        context_dim = 0 if score is None else hidden
        self.cells = nn.ModuleList(
            cell(hidden, 0) if layer else cell(width, context_dim) for layer in range(num_decoder)
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
        context = None if self.read is None else encoded.items.new_zeros(rows * count, self.memory_dim)
        outputs = queries.flatten(0, 1)
        for layer, cell in enumerate(self._decoder):
            projected = cell.project(self.dropout(outputs) if layer else outputs)
            outputs = cell(projected, cell.begin(rows * count), context=None if layer else context)[0]
        outputs = outputs.unflatten(0, (rows, count))
        if self.read is not None:
            memory = Memory(encoded.items, encoded.items, encoded.mask).map_keys_with(self.read.score)
            outputs = torch.cat((outputs, self.read(outputs, memory).to(outputs.dtype)), -1)
        return [self._read_out((outputs,), queries)]

    def begin(self, rows: int) -> SteppingState:
        """Zero states in every layer, and nothing to read."""
        return SteppingState(tuple(cell.begin(rows) for cell in self._decoder), context=None, memory=None)

    def start(self, source: Padded) -> SteppingState:
        """Encode items (batch, source, width); map the keys; hand the final states over; read with s_0."""
        encoded = self.encoder(source)
        cells = self._handed_over(encoded)
        if self.read is None:
            return SteppingState(cells, context=None, memory=None)
        states = self.dropout(encoded.states)
        memory = Memory(states, states, source.mask).map_keys_with(self.read.score)
        return SteppingState(cells, context=self._context(cells, memory), memory=memory)

    def forward(
        self, targets: Float[Tensor, "batch target model"], state: SteppingState
    ) -> Float[Tensor, "batch target model"]:
        """All targets in turn; what concerns them alone is one product before the loop and one after it."""
        at_once = self._all_at_once(targets, state)
        if at_once is not None:  # time by time, as they were computed
            return self._read_out(at_once, targets.transpose(0, 1)).transpose(0, 1)
        outputs = []
        for projected in self._decoder[0].project(targets).unbind(1):
            state = self._advance(projected, state)
            outputs.append(_output(state))
        return self._read_out((torch.stack(outputs, 1),), targets)

    def step(
        self, target: Float[Tensor, "rows model"], state: SteppingState
    ) -> tuple[Float[Tensor, "rows model"], SteppingState]:
        """One target more a row."""
        state = self._advance(self._decoder[0].project(target), state)
        return self._read_out((_output(state),), target), state

    def _all_at_once(self, targets: Tensor, state: SteppingState) -> tuple[Tensor, ...] | None:
        """[s_j; c_j] (target, batch, ...) by one compiled run; None where parts have none, or someone listens."""
        cell, read, memory, context = self.cells[0], self.read, state.memory, state.context
        if type(cell) is not GRUCell or read is None or memory is None or context is None:
            return None
        score, mask, weight = read.score, memory.mask, cell.context_weight
        if len(self.cells) > 1 or weight is None or type(score) is not Additive:
            return None
        if memory.mapped_by is not score or not _is_plain_additive(read):
            return None
        rows, size, _ = memory.keys.shape
        lengths = targets.new_full((rows,), size, dtype=torch.int64) if mask is None else getattr(mask, "lengths", None)
        if not (mask is None or type(mask) is Padding) or lengths is None or is_heard() or not is_unheard(cell, read):
            return None
        before, source = Before(state.cells[0][0], context), Source(memory.keys, memory.values, lengths)
        gru = GRUWeights(cell.state_weight, cell.state_bias, weight)
        additive = ReadWeights(score.query_weight, score.v)
        fits = len(targets) == rows == len(before.state) and lengths.shape == (rows,)
        if not fits or not is_compiled_for(targets, *before, *source[:2], *gru, *additive):
            return None
        projected = cell.project(targets.transpose(0, 1).contiguous())
        found = decode(projected, before, source, gru, additive)
        return found

    @property
    def _decoder(self) -> list[AnyCell]:
        """The decoder's layers, lowest first."""
        return cast("list[AnyCell]", list(self.cells))

    def _handed_over(self, encoded: Encoded) -> tuple[CellState | Past, ...]:
        """s_0 of every decoder layer."""
        num_decoder = len(self.cells)
        surplus = len(encoded.finals) - num_decoder
        finals = tuple(encoded.finals[max(0, layer + surplus)] for layer in range(num_decoder))
        if len(self.handovers):
            finals = tuple(handover(final) for handover, final in zip(self.handovers, finals, strict=True))
        return tuple(cell.take_over(final) for cell, final in zip(self._decoder, finals, strict=True))

    def _advance(self, projected: Tensor, state: SteppingState) -> SteppingState:
        """s_j in every layer, then c_j; `projected` is what the lowest cell makes of x'_j."""
        lowest, *upper = self._decoder
        cells = [lowest(projected, state.cells[0], context=state.context)]
        for cell, before in zip(upper, state.cells[1:], strict=True):
            cells.append(cell(cell.project(self.dropout(cells[-1][0])), before))
        context = None if state.memory is None else self._context(cells, state.memory)
        return replace(state, cells=tuple(cells), context=context)

    def _context(self, cells: Sequence[CellState | Past], memory: Memory) -> Tensor:
        """What the top layer's state reads."""
        assert self.read is not None
        return self.read(cells[-1][0].unsqueeze(1), memory).squeeze(1)  # (batch, hidden)

    def _read_out(self, outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        """tanh(W_o [s; c; x'] + b_o), for one step or for all; outputs: s and c, side by side or one by one."""
        everything = torch.cat((*outputs, targets.to(outputs[0].dtype)), -1)
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


def _linear(input_dim: int, output_dim: int) -> Linear:
    linear = Linear(input_dim, output_dim)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def _rows_of(cell: CellState | Past, index: Tensor) -> CellState | Past:
    """Those rows of a layer's state."""
    return cell.select(index) if isinstance(cell, Past) else tuple(part.index_select(0, index) for part in cell)


def _output(state: SteppingState) -> Tensor:
    """[s_j; c_j], or s_j without attention."""
    top = state.cells[-1][0]
    return top if state.context is None else torch.cat((top, state.context.to(top.dtype)), -1)


def _is_plain_additive(read: Read) -> bool:
    """Whether it is softmax(v . tanh(W_q s + W_k h)) and nothing else, by whichever kernel is best."""
    score, choose = read.score, read.choose
    return (
        type(read) is Read
        and type(score) is Additive
        and score.gain is None
        and score.num_heads is None
        and type(choose) is Soft
        and choose.log_beta is None
        and isinstance(choose.beta, int | float)
        and choose.beta == 1
        and read.bias is None
        and read.kernel == "auto"
    )


def _score(config: AnyConfig) -> Score | None:
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


def _choice(config: AnyConfig) -> Choice | None:
    # Cosines lie in [-1, 1], where a softmax is nearly flat: how much to make of them is learned.
    return Soft(10.0, learn=True) if config.attention == "cosine" else None
