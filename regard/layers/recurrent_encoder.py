"""The recurrent encoder: states of every source item, from one side or from both.

    forwards    h_i = cell(x_i, h_{i-1})        i = 1 .. n
    backwards   g_i = cell(x_i, g_{i+1})        i = n .. 1
    states      [h_i; g_i]                      each direction has half of the size

Rows of a batch have their own lengths: the backward direction runs over rows that are turned round within their
length, and final states are those of each row's own last item, so padding is absent and not just ignored.

Source: lectures, B; schuster1997 (both directions); bahdanau2015, section 3.2.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.dropout import Dropout

__all__ = ["Encoded", "RecurrentEncoder", "turned"]

_RUNS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class Encoded(NamedTuple):
    """What the encoder hands over."""

    states: Float[Tensor, "batch source hidden"]
    """Of every item, in the top layer."""
    finals: tuple[Float[Tensor, "batch hidden"], ...]
    """Of each layer: the states after each row's last item in either direction."""


class RecurrentEncoder(nn.Module):
    """Layers of rnn (tanh), gru or lstm over padded items (batch, source, input_dim), hidden in all directions.

    Raises: ValueError for an unknown cell, or a hidden size that the directions cannot share.
    """

    def __init__(
        self, input_dim: int, hidden: int, *, cell: str, layers: int = 1, directions: int = 2, dropout: float = 0.0
    ):
        super().__init__()
        if cell not in _RUNS:
            raise ValueError(f"cell must be one of {', '.join(_RUNS)}, but is {cell!r}")
        if directions not in (1, 2) or hidden % directions:
            raise ValueError(f"hidden must divide into 1 or 2 directions, but is {hidden} into {directions}")
        sizes = [input_dim, *[hidden] * (layers - 1)]
        run, share = _RUNS[cell], hidden // directions
        self.forwards = nn.ModuleList(run(size, share, batch_first=True) for size in sizes)
        self.backwards = nn.ModuleList(run(size, share, batch_first=True) for size in sizes if directions == 2)
        self.dropout = Dropout(dropout)

    def forward(self, source: Padded) -> Encoded:
        """States of all items and final states of all layers."""
        items, lengths = source.items, source.lengths
        last = (lengths - 1).clamp(min=0)
        finals = []
        for number, layer in enumerate(self.forwards):
            if number:
                items = self.dropout(items)
            states = layer(items)[0]
            ends = [_row(states, last)]
            if self.backwards:
                back = self.backwards[number](turned(items, lengths))[0]
                ends.append(_row(back, last))
                states = torch.cat((states, turned(back, lengths)), -1)
            items = states
            finals.append(torch.cat(ends, -1))
        return Encoded(items, tuple(finals))


def turned(
    items: Float[Tensor, "batch source dim"], lengths: Int[Tensor, " batch"]
) -> Float[Tensor, "batch source dim"]:
    """Every row backwards within its length; padding stays where it is."""
    batch, time = items.shape[:2]
    place = torch.arange(time, device=items.device)
    mirrored = torch.where(place < lengths[:, None], lengths[:, None] - 1 - place, place)
    index = (mirrored + time * torch.arange(batch, device=items.device)[:, None]).flatten()
    return items.flatten(0, 1).index_select(0, index).view_as(items)


def _row(states: Tensor, index: Tensor) -> Tensor:
    return states[torch.arange(states.shape[0], device=states.device), index]
