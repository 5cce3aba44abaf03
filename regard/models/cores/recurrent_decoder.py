"""Recurrent encoder-decoder: the decoder reads the encoder's states at every step.

    h_1 .. h_n = encoder(x)                    the memory; its keys are projected once
    s_0        = h_n, or tanh(W [h_n; g_1] + b) initial state (with one encoder direction, or two)
    s_j        = cell([x'_j; c_{j-1}], s_{j-1}) rnn: s_j = tanh(A' [x'_j; s_{j-1}; c_{j-1}] + b)
    c_j        = sum_i alpha_ij v_i             alpha_.j = softmax_i score(s_j, h_i), at every step
    v_i        = h_i, or W_V h_i                projected once (value_map)
    hidden_j   = tanh(W_o [s_j; c_j; x'_j] + b_o)     input of the writer, which predicts y_j

x'_j is the previous output, x'_1 the start symbol. `begin` reads c_0 with s_0; each step then reads
once. (Bahdanau aligns step j with s_{j-1}: that is our c_{j-1}, which enters s_j here as it does
there.) Attention "none" has no context vector: the decoder depends on the source only through s_0.
Cells that read their own past (regard.models.cores.self_attentive) have its result as s_{j-1}.

With several layers, the input of the lowest is [x'_j; c_{j-1}], and the state of the top layer is
the query. A decoder layer starts from the encoder layer of the same depth, counted from the top;
the cell state of an lstm from W' [cells] + b'.

Source: lectures, B.1 to B.8; sutskever2014 (none); bahdanau2015 (additive, option 1); luong2015
(rest, option 2); cosine graves2014.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.choices import Soft
from regard.attention.masks import Mask, Padded, Padding
from regard.attention.memory import Memory
from regard.attention.scores import Additive, Score
from regard.attention.scores.base import ScoreSizes
from regard.compat.torch import has_no_hooks, scan
from regard.layers.dropout import Dropout
from regard.layers.linear import Linear
from regard.layers.read import Read, Role
from regard.layers.recurrent.cells import CELLS, Cell, CellState, GRUCell
from regard.layers.recurrent.self_attentive import Past, SelfAttentiveCell
from regard.models.cores.config import (
    STATE_SCORES,
    RecurrentConfig,
    SelfAttentiveConfig,
    check_core,
)
from regard.models.cores.core import (
    Core,
    Item,
    Items,
    config_of,
    create_choice,
    load_class,
)
from regard.ops.gru import GRUDecoderState, GRUWeights, ReadWeights, SourceMemory, decode
from regard.settings.declare import check_unused

AnyCell = Cell | SelfAttentiveCell
ConfigT = TypeVar("ConfigT", bound=RecurrentConfig | SelfAttentiveConfig)


@dataclass(frozen=True, eq=False)
class RecurrentDecoderState:
    """State of the decoder between two steps, and the memory that it reads."""

    cells: tuple[CellState | Past, ...]
    """State of each decoder layer, its output first; the output of the top layer is s_j."""
    context: Float[Tensor, "rows value_dim"] | None
    """c_j; None without attention."""
    memory: Memory | None
    """States of the encoder as projected keys, and as values; None without attention."""

    def select(self, index: Int[Tensor, " rows"]) -> Self:
        memory = None if self.memory is None else self.memory.select(index)
        return replace(self.reorder(index), memory=memory)

    def reorder(self, index: Int[Tensor, " rows"]) -> Self:
        cells: list[CellState | Past] = []
        for cell in self.cells:
            if isinstance(cell, Past):
                cells.append(cell.select(index))
            else:
                cells.append(tuple(part.index_select(0, index) for part in cell))
        context = None if self.context is None else self.context.index_select(0, index)
        return replace(self, cells=tuple(cells), context=context)

    def slide(self, window: int) -> Self:
        return replace(self, cells=tuple(cast("Past", cell).slide(window) for cell in self.cells))


class EncodedStates(Padded):
    """States of a recurrent encoder (items), and the final state of each layer, for s_0."""

    finals: tuple[CellState, ...]
    mask: Mask | None = None
    """Mask of the source."""

    def _replace(self, **fields: Any) -> Self:
        """Replace items; the final states and the mask are kept."""
        replaced = super()._replace(**fields)
        vars(replaced).update(vars(self))
        return replaced


class RecurrentDecoderCore(Core, ABC, Generic[ConfigT]):
    """Base class of recurrent cores: an encoder, and a decoder of cells with attention to it.

    Built from a config, or from its fields: `Recurrent(width=96, hidden=128)`. The encoder is
    constructed first, so that a seed gives it the same weights with and without a decoder.

    dropout:  in training, on the encoder's states, between layers, and on the input of the readout.
    encodes:  False for the decoder alone, without attention to a source.
    decodes:  False for the encoder alone.
    in_order: False decodes sets of queries, each by a single step from a state of zeros.
    score:    score of the encoder's states; that of the config if not given.
    Raises:   ValueError for a score or a map of values without a memory.
    """

    config_class: ClassVar[Any]

    def __init__(
        self,
        config: ConfigT | None = None,
        *,
        dropout: float = 0.0,
        encodes: bool = True,
        decodes: bool = True,
        in_order: bool = True,
        score: Score | None = None,
        **fields: Any,
    ):
        config = config_of(self.config_class, config, fields)
        width, hidden, source = config.width, config.hidden, config.encoder_size
        if score is not None and config.attention == "none":
            raise ValueError("`score` must be None with attention='none'")
        if not (encodes and decodes):
            if score is not None:
                raise ValueError("`score` must be None without an encoder or a decoder")
            unused = ["value_map", "encoder_hidden"]
            unused += [] if config.attention == "none" else ["attention"]
            unused += ["decoder_layers"] if encodes else []
            unused += [] if encodes or config.decoder_layers is None else ["layers"]
            check_unused(config, unused, "decodes=False" if encodes else "encodes=False")
        check_core(config, encodes=encodes, decodes=decodes)
        super().__init__(
            width, memory_dim=source, encodes=encodes, decodes=decodes, in_order=in_order
        )
        num_decoder = (config.decoder_layers or config.layers) if decodes else 0
        self.encoder = self.create_encoder(config, dropout) if encodes else nn.Identity()
        # With one direction and one size, the final state of the encoder is the initial state of
        # the decoder.
        is_bridged = config.directions == 2 or source != hidden
        num_bridges = num_decoder if is_bridged and encodes and in_order else 0
        parts = CELLS[config.cell].parts
        self.bridges = nn.ModuleList(
            Bridge(source, hidden, parts=parts) for _ in range(num_bridges)
        )
        if score is None and config.attention != "none" and decodes and encodes:
            sizes = ScoreSizes(
                hidden, source, config.attention_hidden, max_keys=config.max_positions
            )
            score = load_class(STATE_SCORES[config.attention]).create(sizes)
        self.read, self.value_map, self.context_dim = None, None, 0
        if score is not None:
            role = Role("recurrent", queries="output" if in_order else "queries")
            choice = create_choice(config, score)
            self.read = Read(score, choice=choice, kernel=config.kernel, role=role)
            self.context_dim = source
        if config.value_map is not None:
            self.value_map = _linear(source, config.value_map, bias=False)
            self.context_dim = config.value_map
        cells = []
        for layer in range(num_decoder):
            # Only the lowest layer reads the input and the context.
            input_dim, context_dim = (hidden, 0) if layer else (width, self.context_dim)
            cells.append(self.create_cell(config, layer + 1, input_dim, context_dim))
        self.cells = nn.ModuleList(cells)
        readout_dim = hidden + self.context_dim + width
        self.readout = _linear(readout_dim, width) if decodes else nn.Identity()
        self.dropout = Dropout(dropout)

    @abstractmethod
    def create_encoder(self, config: ConfigT, dropout: float) -> nn.Module:
        """Create an encoder that returns an EncodedSource."""

    @abstractmethod
    def create_cell(self, config: ConfigT, layer: int, input_dim: int, context_dim: int) -> AnyCell:
        """Create the cell of a decoder layer, from 1; context_dim is 0 without a context."""

    def blocks(self) -> list[nn.Module]:
        # The modules of the decoder are called one by one at every step.
        return [self.encoder]

    def encode(self, source: Padded) -> Padded:
        states, finals = self.encoder(source)
        if not (self.decodes and self.in_order):
            return source._replace(items=self.dropout(states))
        if self.read is not None:  # without, nothing reads the states
            states = self.dropout(states)
        encoded = EncodedStates(states, source.lengths)
        encoded.mask, encoded.finals = source.mask, finals
        return encoded

    def decode_set(self, queries: Items, encoded: Padded) -> list[Items]:
        # A step from zeros in every layer, then attention to the source.
        if self.in_order:
            raise ValueError("`decode_set` needs a core with in_order=False")
        rows, count, _ = queries.shape
        context = None
        if self.read is not None:
            context = encoded.items.new_zeros(rows * count, self.context_dim)
        outputs = queries.flatten(0, 1)
        for layer, cell in enumerate(self._decoder):
            projected = cell.project(self.dropout(outputs) if layer else outputs)
            outputs, *_ = cell(projected, cell.begin(rows * count), context=context)
            context = None
        outputs = outputs.unflatten(0, (rows, count))
        if self.read is not None:
            memory = self._memory(self.read, encoded.items, encoded.mask)
            outputs = torch.cat((outputs, self.read(outputs, memory).to(outputs.dtype)), -1)
        return [self._read_out((outputs,), queries)]

    def begin(self, encoded: Padded | None, *, rows: int = 1) -> RecurrentDecoderState:
        if encoded is None:  # s_0 is zero in every layer, and there is no memory
            cells = tuple(cell.begin(rows) for cell in self._decoder)
            return RecurrentDecoderState(cells, context=None, memory=None)
        if not isinstance(encoded, EncodedStates):
            kind = type(encoded).__name__
            raise TypeError(f"`encoded` must be what `encode` returned, EncodedStates, got {kind}")
        states = []
        for layer, cell in enumerate(self._decoder):
            final = encoded.finals[max(0, layer + len(encoded.finals) - len(self.cells))]
            if len(self.bridges):
                final = self.bridges[layer](final)
            states.append(cell.init_from(final))
        cells = tuple(states)
        if self.read is None:
            return RecurrentDecoderState(cells, context=None, memory=None)
        memory = self._memory(self.read, encoded.items, encoded.mask)
        return RecurrentDecoderState(cells, context=self._context(cells, memory), memory=memory)

    def forward(self, targets: Items, state: RecurrentDecoderState) -> Items:
        if targets.shape[1] == 0:  # a step that is left out: parameters have a zero gradient
            step = targets.new_zeros(len(targets), 1, targets.shape[-1]) + targets.sum()
            return self.forward(step, state)[:, :0]
        # The input and output projections are one product each, outside the loop.
        outputs_at_once = self._at_once(targets, state)
        if outputs_at_once is not None:  # time-major
            return self._read_out(outputs_at_once, targets.transpose(0, 1)).transpose(0, 1)
        projected = self._decoder[0].project(targets)
        if torch.compiler.is_exporting() and not isinstance(state.cells[0], Past):
            return self._read_out((self._scan(projected, state),), targets)
        outputs = []
        for item in projected.unbind(1):
            state = self._advance(item, state)
            outputs.append(_output(state))
        return self._read_out((torch.stack(outputs, 1),), targets)

    def step(
        self, target: Item, state: RecurrentDecoderState
    ) -> tuple[Item, RecurrentDecoderState]:
        state = self._advance(self._decoder[0].project(target), state)
        return self._read_out((_output(state),), target), state

    def steps(
        self, targets: Items, state: RecurrentDecoderState
    ) -> tuple[Item, RecurrentDecoderState]:
        for projected in self._decoder[0].project(targets).unbind(1):
            state = self._advance(projected, state)
        return self._read_out((_output(state),), targets[:, -1]), state

    def num_layers(self, stack: Literal["encoder", "decoder"]) -> int:
        return len(self.cells) if stack == "decoder" else getattr(self.encoder, "layers", 0)

    def _at_once(self, targets: Tensor, state: RecurrentDecoderState) -> tuple[Tensor, ...] | None:
        """Return [s_j; c_j] (target, batch, ...), or None if the fused operation does not apply."""
        cell, read, memory, context = self.cells[0], self.read, state.memory, state.context
        if type(cell) is not GRUCell or len(self.cells) > 1 or cell.context_weight is None:
            return None
        if read is None or memory is None or context is None or not _is_plain_additive(read):
            return None
        if not memory.is_mapped_by(read.score) or not has_no_hooks(cell, read):
            return None
        rows, size, _ = memory.keys.shape
        if memory.mask is None:
            lengths = targets.new_full((rows,), size, dtype=torch.int64)
        elif type(memory.mask) is Padding:
            lengths = memory.mask.lengths
        else:
            return None
        gru = GRUWeights(
            cell.input_weight, cell.bias, cell.state_weight, cell.state_bias, cell.context_weight
        )
        score = cast("Additive", read.score)
        return decode(
            targets,
            GRUDecoderState(state.cells[0][0], context),
            SourceMemory(memory.keys, memory.values, lengths),
            gru,
            ReadWeights(score.query_weight, score.v),
        )

    def _scan(self, projected: Tensor, state: RecurrentDecoderState) -> Tensor:
        """Return [s_j; c_j] (batch, target, ...), in an exported program."""
        given, context = state.memory, [] if state.context is None else [state.context]

        def step(parts: tuple[Any, ...], item: Tensor) -> tuple[tuple[Any, ...], Tensor]:
            (cells, *context), memory = parts, None
            if given is not None and self.read is not None:
                # A new one: torch does not trace a score by two names, of the read and the memory.
                memory = Memory(given.keys, given.values, given.mask, self.read.score)
            before = RecurrentDecoderState(cells, context[0] if context else None, memory)
            after = self._advance(item, before)
            return (after.cells, *(after.context for _ in context)), _output(after).clone()

        return scan(step, (state.cells, *context), projected)[1]

    @property
    def _decoder(self) -> list[AnyCell]:
        return cast("list[AnyCell]", list(self.cells))

    def _memory(self, read: Read, states: Tensor, mask: Mask | None) -> Memory:
        values = states if self.value_map is None else self.value_map(states)
        return Memory(states, values, mask).map_keys_with(read.score)

    def _advance(self, projected: Tensor, state: RecurrentDecoderState) -> RecurrentDecoderState:
        """Return s_j of every layer and c_j; projected: project(x'_j) of the lowest cell."""
        lowest, *upper = self._decoder
        cells = [lowest(projected, state.cells[0], context=state.context)]
        for cell, before in zip(upper, state.cells[1:], strict=True):
            cells.append(cell(cell.project(self.dropout(cells[-1][0])), before))
        context = None if state.memory is None else self._context(cells, state.memory)
        return replace(state, cells=tuple(cells), context=context)

    def _context(self, cells: Sequence[CellState | Past], memory: Memory) -> Tensor:
        assert self.read is not None
        return self.read(cells[-1][0].unsqueeze(1), memory).squeeze(1)  # (batch, context_dim)

    def _read_out(self, outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        """Return tanh(W_o [s; c; x'] + b_o), of s and c concatenated or separate."""
        inputs = torch.cat((*outputs, targets.to(outputs[0].dtype)), -1)
        return torch.tanh(self.readout(self.dropout(inputs)))


class Bridge(nn.Module):
    """Initial state of a decoder layer: tanh(W s + b), and W' cell + b' (lstm)."""

    def __init__(self, source: int, hidden: int, *, parts: int):
        super().__init__()
        self.projections = nn.ModuleList(_linear(source, hidden) for _ in range(parts))

    def forward(self, final: CellState) -> CellState:
        output, *rest = (linear(part) for linear, part in zip(self.projections, final, strict=True))
        return torch.tanh(output), *rest


def _linear(input_dim: int, output_dim: int, *, bias: bool = True) -> Linear:
    linear = Linear(input_dim, output_dim, bias=bias)
    nn.init.xavier_uniform_(linear.weight)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


def _output(state: RecurrentDecoderState) -> Tensor:
    """Return [s_j; c_j], or s_j without attention."""
    top = state.cells[-1][0]
    return top if state.context is None else torch.cat((top, state.context.to(top.dtype)), -1)


def _is_plain_additive(read: Read) -> bool:
    """Return True if the read is softmax(v . tanh(W_q s + W_k h)), with kernel auto."""
    score, choice = read.score, read.choice
    return (
        type(read) is Read
        and type(score) is Additive
        and score.gain is None
        and score.num_heads is None
        and type(choice) is Soft
        and choice.log_beta is None
        and isinstance(choice.beta, int | float)
        and choice.beta == 1
        and read.mask is None
        and read.bias is None
        and read.kernel == "auto"
    )
