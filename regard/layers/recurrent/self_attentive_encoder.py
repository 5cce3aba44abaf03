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

from torch import nn

from regard.attention.masks import Padded
from regard.layers.dropout import Dropout
from regard.layers.read import REVERSED_SOURCE, Role
from regard.layers.recurrent.encoder import EncodedSource, run_layers
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
        directions = [cells for cells in (self.forward_cells, self.backward_cells) if len(cells)]
        layers = cast("Iterator[list[SelfAttentiveCell]]", zip(*directions, strict=True))
        return run_layers(source, [[cell.run for cell in cells] for cells in layers], self.dropout)
