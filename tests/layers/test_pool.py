"""Pooling by mean, last item and class token: formulas in float64, rows of unequal length."""

import torch
from torch import nn

from regard.attention.masks import Padded, Unpadded
from regard.layers.pool import ClassToken, LastItem, MeanPooling
from regard.layers.recurrent.encoder import RecurrentEncoder
from tests.helpers import close

LENGTHS = [5, 1, 3, 0]


def make_items(dim: int = 6) -> Padded:
    torch.manual_seed(1)
    items = torch.randn(len(LENGTHS), 7, dim, dtype=torch.float64)
    for row, length in zip(items, LENGTHS, strict=True):
        row[length:] = torch.nan  # padding must not matter
    return Padded(items, torch.tensor(LENGTHS))


def test_mean_is_that_of_the_items_without_padding():
    items = make_items()
    pooled = MeanPooling()(items)
    for row, length in enumerate(LENGTHS):
        close(pooled[row], items.items[row, :length].sum(0) / max(length, 1))
    close(MeanPooling()(Unpadded.of(items.items[:2, :1])), items.items[:2, 0])


def test_last_is_the_item_before_the_padding():
    items = make_items()
    pooled = LastItem()(items)
    close(pooled[:3], torch.stack([items.items[0, 4], items.items[1, 0], items.items[2, 2]]))
    close(pooled[3], torch.zeros(6).double())
    close(LastItem()(Unpadded.of(items.items[:1, :4])), items.items[:1, 3])


def test_last_of_two_directions_is_the_final_state_of_torch():
    for cell, kind in (("gru", nn.GRU), ("lstm", nn.LSTM), ("rnn", nn.RNN)):
        for directions in (1, 2):
            torch.manual_seed(2)
            encoder = RecurrentEncoder(5, 6, cell=cell, layers=2, directions=directions).double()
            torchs = kind(
                5, 6 // directions, num_layers=2, bidirectional=directions == 2, batch_first=True
            ).double()
            torchs.load_state_dict(encoder.rnn.state_dict())
            items, lengths = torch.randn(3, 7, 5, dtype=torch.float64), [4, 7, 1]
            states = encoder(Padded(items, torch.tensor(lengths))).states
            pooled = LastItem(directions=directions)(Padded(states, torch.tensor(lengths)))
            for row, length in enumerate(lengths):
                _, final = torchs(items[row : row + 1, :length])
                h_n = final[0] if cell == "lstm" else final
                close(pooled[row], torch.cat([*h_n[-directions:, 0]]))


def test_class_token_is_put_before_the_items_and_its_item_is_taken():
    items = make_items()
    pool = ClassToken(6).double()
    longer = pool.prepend(items)
    assert longer.lengths.tolist() == [length + 1 for length in LENGTHS]
    for row, length in enumerate(LENGTHS):
        close(longer.items[row, 0], pool.token)
        close(longer.items[row, 1 : 1 + length], items.items[row, :length])
        close(pool(longer)[row], pool.token)
    plain = pool.prepend(Unpadded.of(items.items[:2, :1]))
    assert isinstance(plain, Unpadded)
    assert plain.lengths.tolist() == [2, 2]
