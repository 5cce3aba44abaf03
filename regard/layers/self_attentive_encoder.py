"""The self-attentive encoder: states of a source's items, read from its start, or from both ends.

    forward     h_i = cell(x_i; h_1 .. h_{i-1})         i = 1 .. n          every state has read those before it
    backward    g_i = cell(x_i; g_n .. g_{i+1})         i = n .. 1          with weights of its own
    states      [h_i; g_i]                              the next layer's items
    final       [h_n; g_1]                              both have seen the whole source

Rows have lengths of their own: the backward direction starts at each row's last item, final states are those at each
row's own ends, and no item reads the padding, which comes behind all items in either direction.

Source: cheng2016, section 3.1; bahdanau2015, section 3.2 (both directions).
"""

from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.dropout import Dropout
from regard.layers.recurrent import CellState
from regard.layers.recurrent_encoder import Encoded
from regard.layers.self_attentive import SelfAttentiveCell


class SelfAttentiveEncoder(nn.Module):
    """Layers of cells that read their past over rows of items (batch, source, input_dim).

    hidden: size of a state over both directions together. cell: makes a layer's cell of one direction from the size of
    its input. dropout: on the items between layers, in training.
    """

    def __init__(
        self,
        input_dim: int,
        hidden: int,
        *,
        cell: Callable[[int], SelfAttentiveCell],
        layers: int = 1,
        directions: int = 2,
        dropout: float = 0.0,
    ):
        super().__init__()
        sizes = [hidden if layer else input_dim for layer in range(layers)]
        self.forwards = nn.ModuleList(cell(size) for size in sizes)
        self.backwards = nn.ModuleList(cell(size) for size in sizes if directions == 2)
        self.dropout = Dropout(dropout)

    def forward(self, source: Padded) -> Encoded:
        """States at all items, and the final states of all layers."""
        lengths = source.lengths.to(source.items.device)
        turn, items = _turn(source.items, lengths), source.items
        absent = (torch.arange(items.shape[1], device=items.device) >= lengths[:, None]).unsqueeze(-1)
        finals = []
        for layer, cell in enumerate(self.forwards):
            items = self.dropout(items) if layer else items
            runs = [cast("SelfAttentiveCell", cell).run(items)]
            ends = [_ends(runs[0], lengths)]
            if len(self.backwards):
                turned = cast("SelfAttentiveCell", self.backwards[layer]).run(_turned(items, turn))
                ends.append(_ends(turned, lengths))
                runs.append(tuple(_turned(part, turn) for part in turned[:1]))
            items = torch.cat([states for states, *_ in runs], -1).masked_fill(absent, 0.0)
            finals.append(tuple(torch.cat(parts, -1) for parts in zip(*ends, strict=True)))
        return Encoded(items, tuple(finals))


def _turn(items: Float[Tensor, "batch source dim"], lengths: Int[Tensor, " batch"]) -> Int[Tensor, "batch source"]:
    """Where each item goes when every row is turned round in itself; padding stays."""
    places = torch.arange(items.shape[1], device=items.device)
    turned = lengths[:, None] - 1 - places
    return torch.where(turned >= 0, turned, places)


def _turned(items: Tensor, turn: Tensor) -> Tensor:
    return items.gather(1, turn.unsqueeze(-1).expand_as(items))


def _ends(parts: CellState, lengths: Tensor) -> CellState:
    """The state after each row's last item; zeros for a row without items."""
    last, empty = (lengths - 1).clamp(min=0), (lengths < 1).unsqueeze(-1)
    rows = torch.arange(len(lengths), device=lengths.device)
    return tuple(part[rows, last].masked_fill(empty, 0.0) for part in parts)
