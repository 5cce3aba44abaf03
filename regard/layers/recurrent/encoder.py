"""Recurrent encoder: one or two directions of rnn, gru or lstm layers over the source.

    forward     h_i = cell(x_i, h_{i-1}),  h_0     = 0         i = 1 .. n
    backward    g_i = cell(x_i, g_{i+1}),  g_{n+1} = 0         i = n .. 1
    states      [h_i; g_i]                                     the next layer's items
    final       [h_n; g_1]                                     both depend on the whole source

Rows may differ in length: the backward direction starts at each row's last item, and the final
states are those at the ends of each row. So padding is absent, not just ignored.

Source: lectures, B.1; bahdanau2015, section 3.2 (both directions).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.attention.masks import Padded
from regard.compat.torch import has_no_hooks, scan
from regard.layers.recurrent.cells import CELLS, CellState, orthogonal_gates_, xavier_gates_
from regard.ops.copies import copy_to, cpu_copy
from regard.ops.gru import DirectionWeights, encode

_RUNS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
_STEPS = {"rnn": torch.rnn_tanh_cell, "gru": torch.gru_cell, "lstm": torch.lstm_cell}


class EncodedSource(NamedTuple):
    """Output of a recurrent encoder."""

    states: Tensor
    """(batch, source, hidden): states of the top layer; zeros at padding."""
    finals: tuple[CellState, ...]
    """Final state of each layer: parts (batch, hidden); zeros for a row without items."""


class RecurrentEncoder(nn.Module):
    """Layers of rnn (tanh), gru or lstm over rows of items (batch, source, input_dim).

    hidden:  size of a state, both directions together.
    dropout: on the items between layers, in training.
    """

    def __init__(
        self,
        input_dim: int,
        hidden: int,
        *,
        cell: str,
        layers: int = 1,
        directions: int = 2,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.layers, self.directions, self.cell = layers, directions, cell
        self.rnn = _RUNS[cell](
            input_dim,
            hidden // directions,
            num_layers=layers,
            bidirectional=directions == 2,
            dropout=dropout if layers > 1 else 0.0,
            batch_first=True,
        )
        _initialize(self.rnn, CELLS[cell].gates)

    def forward(self, source: Padded) -> EncodedSource:
        if torch.compiler.is_exporting():  # packed rows would fix the number of items
            runs = iter([partial(self._scan, weights) for weights in self.rnn.all_weights])
            dropout = partial(torch.dropout, p=self.rnn.dropout, train=self.training)
            return run_layers(source, [*zip(*[runs] * self.directions, strict=True)], dropout)
        encoded = self._fused_forward(source)
        if encoded is not None:
            return encoded
        # Packing rejects empty rows: they get one item, whose state is zeroed below. Packed without
        # an order of rows, torch would wait for the device twice.
        lengths, order = cpu_copy(source.lengths).clamp(min=1).sort(descending=True)
        device, total = source.items.device, source.items.shape[1]
        inverse, order = copy_to(order.argsort(), device), copy_to(order, device)
        packed = pack_padded_sequence(
            source.items.index_select(0, order), lengths, batch_first=True
        )
        packed_states, ends = self.rnn(packed)
        states, _ = pad_packed_sequence(packed_states, batch_first=True, total_length=total)
        states = states.index_select(0, inverse)
        empty, parts = (source.lengths < 1).unsqueeze(-1), []
        for part in ends if isinstance(ends, tuple) else (ends,):
            by_row = part.index_select(1, inverse)
            by_direction = by_row.unflatten(0, (self.layers, self.directions))
            merged = by_direction.transpose(1, 2).flatten(2)  # (layers, batch, hidden)
            parts.append(merged.masked_fill(empty, 0.0).unbind(0))
        return EncodedSource(states, tuple(zip(*parts, strict=True)))

    def _fused_forward(self, source: Padded) -> EncodedSource | None:
        """Return what `forward` does by one fused operation; None if it does not apply."""
        rnn = self.rnn
        if type(rnn) is not nn.GRU or not has_no_hooks(rnn):
            return None
        layers = [[] for _ in range(self.layers)]
        for number, (item, state, item_bias, state_bias) in enumerate(rnn.all_weights):
            weights = DirectionWeights(item, item_bias, state, state_bias)
            layers[number // self.directions].append(weights)
        encoded = encode(
            source.items, source.lengths, layers, dropout=rnn.dropout, training=self.training
        )
        if encoded is None:
            return None
        return EncodedSource(encoded[0], tuple((final,) for final in encoded[1]))

    def _scan(self, weights: Sequence[Tensor], items: Tensor) -> CellState:
        advance: Any = _STEPS[self.cell]

        def step(state: CellState, item: Tensor) -> tuple[CellState, CellState]:
            after = advance(item, state if len(state) > 1 else state[0], *weights)
            after = after if len(state) > 1 else (after,)
            return after, tuple(part.clone() for part in after)

        zeros = items.new_zeros(CELLS[self.cell].parts, items.shape[0], self.rnn.hidden_size)
        return scan(step, tuple(part.clone() for part in zeros), items)[1]


def run_layers(
    source: Padded,
    layers: Sequence[Sequence[Callable[[Tensor], CellState]]],
    dropout: Callable[[Tensor], Tensor],
) -> EncodedSource:
    """Run layers of one or two directions; the second starts at each row's last item."""
    items, lengths = source.items, source.lengths.to(source.items.device)
    positions = torch.arange(items.shape[1], device=items.device)
    absent = positions >= lengths[:, None]
    # The index that reverses the items of each row and leaves padding in place.
    reversal = torch.where(absent, positions, lengths[:, None] - 1 - positions)
    finals = []
    for layer, (forward, *backward) in enumerate(layers):
        items = dropout(items) if layer else items
        parts = forward(items)
        states, ends = [parts[0]], [_final_states(parts, lengths)]
        for run in backward:
            parts = run(_reverse(items, reversal))
            states.append(_reverse(parts[0], reversal))
            ends.append(_final_states(parts, lengths))
        items = torch.cat(states, -1).masked_fill(absent.unsqueeze(-1), 0.0)
        finals.append(tuple(torch.cat(parts, -1) for parts in zip(*ends, strict=True)))
    return EncodedSource(items, tuple(finals))


def _reverse(items: Tensor, reversal: Tensor) -> Tensor:
    return items.gather(1, reversal.unsqueeze(-1).expand_as(items))


def _final_states(parts: CellState, lengths: Tensor) -> CellState:
    """Return the state after each row's last item; zeros for a row without items."""
    last, empty = (lengths - 1).clamp(min=0), (lengths < 1).unsqueeze(-1)
    rows = torch.arange(lengths.shape[0], device=lengths.device)
    return tuple(part[rows, last].masked_fill(empty, 0.0) for part in parts)


def _initialize(run: nn.RNNBase, gates: int) -> None:
    """Initialize the weights as the decoder's cells do; torch's second bias is zero."""
    for name, weight in run.named_parameters():
        if name.startswith("weight_ih"):
            xavier_gates_(weight, gates)
        elif name.startswith("weight_hh"):
            orthogonal_gates_(weight, gates)
        else:
            nn.init.zeros_(weight)
            if isinstance(run, nn.LSTM) and name.startswith("bias_ih"):  # the forget gate
                nn.init.ones_(weight[run.hidden_size : 2 * run.hidden_size])
