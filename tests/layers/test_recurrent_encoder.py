"""Recurrent encoder: equality with torch's layers row by row, both directions, padding."""

import pytest
import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.recurrent.encoder import EncodedSource, RecurrentEncoder
from tests.helpers import close

INPUT, HIDDEN = 3, 10
TIME, LENGTHS = 7, (4, 7, 1, 5)
THEIRS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
every_cell = pytest.mark.parametrize("cell", THEIRS)
every_shape = pytest.mark.parametrize(("layers", "directions"), [(1, 1), (1, 2), (3, 1), (2, 2)])


def make_encoder(cell: str, layers: int, directions: int, **more) -> RecurrentEncoder:
    encoder = RecurrentEncoder(
        INPUT, HIDDEN, cell=cell, layers=layers, directions=directions, **more
    ).double()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.5)
    return encoder


def make_rows(lengths=LENGTHS) -> Padded:
    return Padded(
        torch.randn(len(lengths), TIME, INPUT, dtype=torch.float64), torch.tensor(lengths)
    )


def encode_alone(encoder: RecurrentEncoder, source: Padded, row: int) -> EncodedSource:
    length = int(source.lengths[row])
    return encoder(Padded(source.items[row : row + 1, :length], torch.tensor([length])))


@every_cell
@every_shape
def test_encoder_equals_torchs_layer_by_layer(cell, layers, directions):
    encoder, source = make_encoder(cell, layers, directions), make_rows()
    for row, length in enumerate(LENGTHS):
        items = source.items[row : row + 1, :length]
        encoded = encode_alone(encoder, source, row)
        for layer in range(layers):
            forward, ends = _to_torch(encoder, cell, layer, "")(items)
            ends = list(ends) if cell == "lstm" else [ends]
            if directions == 2:
                backward, more = _to_torch(encoder, cell, layer, "_reverse")(items.flip(1))
                forward = torch.cat((forward, backward.flip(1)), -1)
                more = list(more) if cell == "lstm" else [more]
                ends = [torch.cat(both, -1) for both in zip(ends, more, strict=True)]
            items = forward
            for part, reference in zip(encoded.finals[layer], ends, strict=True):
                close(part, reference[0])
        close(encoded.states, items)


def _to_torch(encoder: RecurrentEncoder, cell: str, layer: int, suffix: str) -> nn.RNNBase:
    """Return torch's layer of one direction with the encoder's weights."""
    weights = dict(encoder.rnn.named_parameters())
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    chosen = {f"{kind}_l0": weights[f"{kind}_l{layer}{suffix}"] for kind in kinds}
    columns, hidden = chosen["weight_ih_l0"].shape[1], chosen["weight_hh_l0"].shape[1]
    theirs = THEIRS[cell](columns, hidden, batch_first=True).double()
    theirs.load_state_dict(chosen)
    return theirs


@every_cell
@every_shape
def test_rows_are_independent_of_their_batch(cell, layers, directions):
    encoder, source = make_encoder(cell, layers, directions), make_rows()
    batched = encoder(source)
    for row, length in enumerate(LENGTHS):
        single = encode_alone(encoder, source, row)
        close(batched.states[row, :length], single.states[0])
        assert batched.states[row, length:].eq(0).all()
        for ours, reference in zip(batched.finals, single.finals, strict=True):
            for part, part_alone in zip(ours, reference, strict=True):
                close(part[row], part_alone[0])


@every_cell
@every_shape
def test_padding_is_absent_in_value_and_gradient(cell, layers, directions):
    encoder, source = make_encoder(cell, layers, directions), make_rows()
    absent = torch.arange(TIME) >= source.lengths[:, None]
    filled = source.items.masked_fill(absent[..., None], float("nan")).requires_grad_()
    clean = source.items.clone().requires_grad_()
    results = [
        _weights_and_sum(encoder, Padded(items, source.lengths)) for items in (clean, filled)
    ]
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    assert filled.grad[absent].eq(0).all()
    assert torch.equal(filled.grad, clean.grad)


def _weights_and_sum(encoder: RecurrentEncoder, source: Padded) -> list[Tensor]:
    """Return the sum of squares of all outputs, and its gradients for weights and items."""
    encoded = encoder(source)
    total = encoded.states.square().sum() + sum(
        part.square().sum() for state in encoded.finals for part in state
    )
    encoder.zero_grad()
    total.backward()
    return [total.detach(), *(parameter.grad.clone() for parameter in encoder.parameters())]


@every_cell
@every_shape
def test_row_without_items_keeps_the_initial_state(cell, layers, directions):
    encoder = make_encoder(cell, layers, directions)
    with_empty = make_rows((4, 0, 7))
    encoded = encoder(with_empty)
    assert all(part[1].eq(0).all() for state in encoded.finals for part in state)
    others = encoder(Padded(with_empty.items[[0, 2]], with_empty.lengths[[0, 2]]))
    for state, reference in zip(encoded.finals, others.finals, strict=True):
        close(state[0][[0, 2]], reference[0])


def test_both_directions_see_the_whole_row():
    encoder, source = make_encoder("gru", 1, 2), make_rows((6,))
    changed = Padded(source.items.clone(), source.lengths)
    changed.items[0, 5] += 1
    difference = (encoder(changed).states - encoder(source).states)[0, 0].abs()
    # The forward state of the first item does not depend on the last.
    assert difference[: HIDDEN // 2].eq(0).all()
    assert difference[HIDDEN // 2 :].gt(0).all()


def test_dropout_is_between_layers_and_in_training_only():
    encoder, source = make_encoder("gru", 2, 2, dropout=0.5), make_rows()
    assert not torch.equal(encoder(source).states, encoder(source).states)
    encoder.eval()
    assert torch.equal(encoder(source).states, encoder(source).states)
    single = make_encoder("gru", 1, 2, dropout=0.5)
    assert torch.equal(single(source).states, single(source).states)


@pytest.mark.parametrize("cell", THEIRS)
def test_lstm_starts_with_an_open_forget_gate(cell):
    rnn = RecurrentEncoder(INPUT, HIDDEN, cell=cell, layers=2).rnn
    biases = [bias.detach() for name, bias in rnn.named_parameters() if "bias" in name]
    total = torch.stack(biases).sum(0).view(-1, HIDDEN // 2).sum(1)
    reference = torch.zeros_like(total)
    if cell == "lstm":
        reference[1] = 4 * HIDDEN / 2  # two layers of two directions
    assert torch.equal(total, reference)
