"""Recurrent cells: equal torch's cells for inputs [x; c], and the lectures' formula."""

import math

import pytest
import torch
from torch import Tensor, nn

from regard.layers.recurrent.cells import (
    CELLS,
    Cell,
    GRUCell,
    LSTMCell,
    RNNCell,
    orthogonal_gates_,
    xavier_gates_,
)
from tests.helpers import close

BATCH, INPUT, CONTEXT, HIDDEN = 5, 3, 2, 7
THEIRS = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}
every_cell = pytest.mark.parametrize("name", CELLS)


def make_cell(name: str, *, context_dim: int = CONTEXT) -> Cell:
    cell = CELLS[name](INPUT, HIDDEN, context_dim=context_dim).double()
    for parameter in cell.parameters():  # biases too, which start at zero
        nn.init.normal_(parameter)
    return cell


def make_state(cell: Cell) -> tuple[Tensor, ...]:
    return tuple(torch.randn(BATCH, HIDDEN, dtype=torch.float64) for _ in range(cell.parts))


def to_torch(cell: Cell, name: str) -> nn.RNNCellBase:
    """Return torch's cell of this name, with input [x; c]."""
    weights = [weight for weight in (cell.input_weight, cell.context_weight) if weight is not None]
    theirs = THEIRS[name](sum(weight.shape[1] for weight in weights), HIDDEN).double()
    with torch.no_grad():
        theirs.weight_ih.copy_(torch.cat(weights, 1))
        theirs.weight_hh.copy_(cell.state_weight)
        theirs.bias_ih.copy_(cell.bias)
        theirs.bias_hh.zero_()
        if isinstance(cell, GRUCell):
            theirs.bias_hh[2 * HIDDEN :] = cell.state_bias
    return theirs


@every_cell
@pytest.mark.parametrize("context_dim", [0, CONTEXT])
def test_cell_equals_torchs_fed_input_and_context(name, context_dim):
    cell = make_cell(name, context_dim=context_dim)
    item = torch.randn(BATCH, INPUT, dtype=torch.float64)
    context = torch.randn(BATCH, context_dim, dtype=torch.float64) if context_dim else None
    state = make_state(cell)
    ours = cell(cell.project(item), state, context=context)
    everything = item if context is None else torch.cat((item, context), 1)
    expected = to_torch(cell, name)(everything, state if cell.parts == 2 else state[0])
    for part, reference in zip(ours, expected if cell.parts == 2 else (expected,), strict=True):
        close(part, reference)


def test_rnn_step_by_hand():
    cell = RNNCell(1, 2, context_dim=1).double()
    with torch.no_grad():
        cell.input_weight.copy_(torch.tensor([[2.0], [0.0]]))
        cell.context_weight.copy_(torch.tensor([[0.0], [3.0]]))
        cell.state_weight.copy_(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
        cell.bias.copy_(torch.tensor([0.5, -0.5]))
    item, context, before = (
        torch.tensor([x], dtype=torch.float64) for x in ([0.25], [0.5], [0.125, -2.0])
    )
    (after,) = cell(cell.project(item), (before,), context=context)
    by_hand = [math.tanh(2 * 0.25 + 1 * -2.0 + 0.5), math.tanh(3 * 0.5 - 1 * 0.125 - 0.5)]
    close(after, torch.tensor([by_hand], dtype=torch.float64))


def test_lstm_keeps_its_cell_with_open_forget_gate_and_closed_input_gate():
    cell = make_cell("lstm", context_dim=0)
    write, keep = slice(0, HIDDEN), slice(HIDDEN, 2 * HIDDEN)
    with torch.no_grad():
        cell.bias[write], cell.bias[keep] = -1e4, 1e4
    state = make_state(cell)
    _, after = cell(cell.project(torch.randn(BATCH, INPUT, dtype=torch.float64)), state)
    assert torch.equal(after, state[1])


@every_cell
def test_cell_runs_in_bfloat16_autocast(name):
    cell = make_cell(name).float()
    item, context, state = torch.randn(BATCH, INPUT), torch.randn(BATCH, CONTEXT), make_state(cell)
    state = tuple(part.float() for part in state)
    exact = cell(cell.project(item), state, context=context)
    with torch.autocast("cpu", torch.bfloat16):
        first = cell(cell.project(item), state, context=context)  # from a float32 state
        cell(cell.project(item), first, context=context)  # and from its output
    for part, reference in zip(first, exact, strict=True):
        assert (part.float() - reference).abs().max() < 0.1


@every_cell
def test_context_raises_for_a_cell_without_one(name):
    cell = make_cell(name, context_dim=0)
    item = torch.randn(BATCH, INPUT, dtype=torch.float64)
    with pytest.raises(ValueError, match="context must not be given"):
        cell(cell.project(item), make_state(cell), context=item)


@every_cell
def test_missing_context_raises(name):
    cell = make_cell(name)
    item = torch.randn(BATCH, INPUT, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"context must be given.*context_dim=2"):
        cell(cell.project(item), make_state(cell))


@every_cell
def test_state_weights_start_orthogonal(name):
    cell = CELLS[name](INPUT, HIDDEN)
    for square in cell.state_weight.detach().chunk(cell.gates):
        close(square @ square.t(), torch.eye(HIDDEN))


def test_biases_start_at_zero_except_the_forget_gate():
    assert not GRUCell(INPUT, HIDDEN).bias.any()
    bias = LSTMCell(INPUT, HIDDEN).bias.detach().view(4, HIDDEN)
    assert torch.equal(bias.sum(1), torch.tensor([0.0, HIDDEN, 0.0, 0.0]))


def test_xavier_counts_one_gate():
    weight = xavier_gates_(torch.empty(4 * 50, 70), 4)
    bound = math.sqrt(6 / (70 + 50))
    assert 0.98 * bound < weight.abs().max() <= bound


def test_orthogonal_fills_each_gate():
    assert not torch.equal(*orthogonal_gates_(torch.empty(2 * 5, 5), 2).chunk(2))
