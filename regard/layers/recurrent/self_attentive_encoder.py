"""Self-attentive encoder: the source from one or both ends, by cells that read their past states.

    forward     h_i = cell(x_i; h_1 .. h_{i-1})         i = 1 .. n
    backward    g_i = cell(x_i; g_n .. g_{i+1})         i = n .. 1          with separate weights
    states      [h_i; g_i]                              the next layer's items
    final       [h_n; g_1]                              both depend on the whole source

The backward direction starts at each row's last item, and no item reads padding.

Source: cheng2016, section 3.1; bahdanau2015, section 3.2 (both directions).
"""

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.dropout import Dropout
from regard.layers.read import REVERSED_SOURCE, Role
from regard.layers.recurrent.cells import CellState
from regard.layers.recurrent.encoder import EncodedSource
from regard.layers.recurrent.self_attentive import SelfAttentiveCell


class SelfAttentiveEncoder(nn.Module):
    """Layers of self-attentive cells over items (batch, source, input_dim).

    hidden: size of a state, both directions together. cell: returns the cell of one layer and
    direction, given its input size and the role of its read. dropout: on the items between layers,
    in training.
    """

    def __init__(
        self,
        input_dim: int,
        hidden: int,
        *,
        cell: Callable[[int, Role], SelfAttentiveCell],
        layers: int = 1,
        directions: int = 2,
        dropout: float = 0.0,
    ):
        super().__init__()
        sizes = [hidden if layer else input_dim for layer in range(layers)]

        def cells(axis: str, direction: str) -> Iterator[SelfAttentiveCell]:
            for layer, size in enumerate(sizes, start=1):
                yield cell(size, Role("chain", layer, queries=axis, keys=axis, direction=direction))

        self.forward_cells = nn.ModuleList(cells("source", "forward"))
        backward = cells(REVERSED_SOURCE, "backward") if directions == 2 else ()
        self.backward_cells = nn.ModuleList(backward)
        self.dropout = Dropout(dropout)

    def forward(self, source: Padded) -> EncodedSource:
        lengths = source.lengths.to(source.items.device)
        items = source.items
        positions = torch.arange(items.shape[1], device=items.device)
        absent = positions >= lengths[:, None]
        # The index that reverses the items of each row and leaves padding in place.
        reversal = torch.where(absent, positions, lengths[:, None] - 1 - positions)
        finals = []
        for layer, cell in enumerate(self.forward_cells):
            items = self.dropout(items) if layer else items
            parts = cast("SelfAttentiveCell", cell).run(items)
            states, ends = [parts[0]], [_final_states(parts, lengths)]
            if len(self.backward_cells):
                backward_cell = cast("SelfAttentiveCell", self.backward_cells[layer])
                parts = backward_cell.run(_reverse(items, reversal))
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
