"""A gru's whole sequence as one function: what torch's own steps give, forwards and backwards."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from regard.attention.kernels.additive_op import REACH
from regard.attention.masks import Padded
from regard.layers import recurrent_encoder, recurrent_run
from regard.layers.recurrent import GRUCell
from regard.layers.recurrent_encoder import RecurrentEncoder
from regard.layers.recurrent_run import Before, GRUWeights, ReadWeights, Source, decode

INPUT, HIDDEN, TIME, LENGTHS = 5, 24, 7, (4, 7, 0, 1, 5)
FULL = (4, 7, 2, 1, 5)
ROWS, STEPS, KEYS, DIM, VALUE_DIM = 5, 6, 7, 21, 13


def encoder_of(**sizes) -> RecurrentEncoder:
    encoder = RecurrentEncoder(INPUT, HIDDEN, cell="gru", **sizes)
    for parameter in encoder.parameters():  # biases too, which start at zero
        nn.init.normal_(parameter, std=0.4)
    return encoder


def run_of(encoder: RecurrentEncoder, items: Tensor, lengths: tuple[int, ...] = LENGTHS) -> list[Tensor]:
    """States, finals, and the gradients of a sum in which each of them has a weight of its own."""
    leaf = items.clone().requires_grad_()
    encoded = encoder(Padded(leaf, torch.tensor(lengths)))
    results = [encoded.states, *(part for final in encoded.finals for part in final)]
    total = sum((out * weights_of(out)).sum() for out in results)
    assert isinstance(total, Tensor)
    return [out.detach() for out in (*results, *torch.autograd.grad(total, [leaf, *encoder.parameters()]))]


def weights_of(out: Tensor) -> Tensor:
    return torch.sin(torch.arange(out.numel(), dtype=out.dtype)).view(out.shape)


def alike(ours: list[Tensor], wanted: list[Tensor], tolerance: float = 2e-6) -> None:
    """Equal to rounding: beside the largest of each."""
    for mine, theirs in zip(ours, wanted, strict=True):
        assert mine.shape == theirs.shape
        assert (mine - theirs).abs().max() <= tolerance * (1 + theirs.abs().max())


def without(monkeypatch: pytest.MonkeyPatch, *modules) -> None:
    """Leave the reference alone."""
    for module in modules:
        monkeypatch.setattr(module, "is_compiled_for", lambda *_: False)


@pytest.mark.parametrize(("layers", "directions"), [(1, 1), (1, 2), (3, 1), (2, 2)])
def test_encoder_equals_torchs(layers, directions, monkeypatch):
    encoder, items = encoder_of(layers=layers, directions=directions), torch.randn(len(LENGTHS), TIME, INPUT)
    called = []
    encode = recurrent_run.encode
    monkeypatch.setattr(recurrent_encoder, "encode", lambda *inputs: called.append(1) or encode(*inputs))
    ours = run_of(encoder, items, FULL)
    assert len(called) == layers
    without(monkeypatch, recurrent_encoder)
    alike(ours, run_of(encoder, items, FULL))
    assert len(called) == layers


def test_encoder_in_half_precision_is_as_near_as_its_products(monkeypatch):
    encoder, items = encoder_of(), torch.randn(len(LENGTHS), TIME, INPUT)
    with torch.autocast("cpu", torch.bfloat16):
        ours = run_of(encoder, items, FULL)
    without(monkeypatch, recurrent_encoder)
    alike(ours, run_of(encoder, items, FULL), tolerance=0.03)


def test_padding_is_absent_from_what_an_encoder_learns():
    encoder, items = encoder_of(), torch.randn(len(LENGTHS), TIME, INPUT)
    absent = torch.arange(TIME) >= torch.tensor(LENGTHS)[:, None]
    refilled = torch.where(absent[..., None], torch.randn_like(items), items)
    for one, other in zip(run_of(encoder, items), run_of(encoder, refilled), strict=True):
        assert torch.equal(one, other)


def test_a_row_without_items_has_no_states_and_teaches_nothing():
    encoder, items = encoder_of(), torch.randn(len(LENGTHS), TIME, INPUT)
    states, finals, to_items, *_ = run_of(encoder, items)
    empty = LENGTHS.index(0)
    for part in (states, finals, to_items):
        assert part[empty].eq(0).all()


class Given:
    """What a decoder is given, all of it with gradients."""

    def __init__(self) -> None:
        self.cell = GRUCell(INPUT, HIDDEN, context_dim=VALUE_DIM)
        for parameter in self.cell.parameters():
            nn.init.normal_(parameter, std=0.2)
        shapes = (
            (STEPS, ROWS, 3 * HIDDEN),
            (ROWS, HIDDEN),
            (ROWS, VALUE_DIM),
            (ROWS, KEYS, DIM),
            (ROWS, KEYS, VALUE_DIM),
        )
        self.inputs = [torch.randn(shape).requires_grad_() for shape in shapes]
        self.query, self.v = (torch.randn(shape).mul(0.3).requires_grad_() for shape in ((DIM, HIDDEN), (DIM,)))
        self.lengths = torch.tensor(LENGTHS)

    @property
    def leaves(self) -> list[Tensor]:
        weights = self.cell.state_weight, self.cell.state_bias, self.cell.context_weight
        return [*self.inputs, *weights, self.query, self.v]

    def at_once(self) -> tuple[Tensor, Tensor] | None:
        state, bias, context = self.cell.state_weight, self.cell.state_bias, self.cell.context_weight
        assert context is not None
        weights = GRUWeights(state, bias, context), ReadWeights(self.query, self.v)
        projected, hidden, read, keys, values = self.inputs
        return decode(projected, Before(hidden, read), Source(keys, values, self.lengths), *weights)

    def step_by_step(self) -> tuple[Tensor, Tensor]:
        """The formulas, as they are written."""
        projected, state, context, keys, values = self.inputs
        hidden = torch.arange(KEYS) >= self.lengths[:, None]
        states, contexts = [], []
        for now in projected:
            (state,) = self.cell(now, (state,), context=context)
            scores = torch.tanh((state @ self.query.t())[:, None] + keys) @ self.v
            shares = scores.masked_fill(hidden, -1e9).softmax(-1).masked_fill(hidden, 0)
            context = (shares[..., None] * values).sum(1)
            states.append(state)
            contexts.append(context)
        return torch.stack(states), torch.stack(contexts)

    def gradients(self, outputs: tuple[Tensor, Tensor] | None) -> list[Tensor]:
        assert outputs is not None
        total = sum((out.float() * weights_of(out.float())).sum() for out in outputs)
        assert isinstance(total, Tensor)
        return [*(out.detach().float() for out in outputs), *torch.autograd.grad(total, self.leaves)]


def test_decoder_equals_its_formulas():
    given = Given()
    alike(given.gradients(given.at_once()), given.gradients(given.step_by_step()), tolerance=5e-6)


def test_decoder_in_half_precision_is_as_near_as_its_products():
    given = Given()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = given.at_once()
    assert outputs is not None
    assert outputs[0].dtype == torch.bfloat16
    # Rounding of the products, of which each step hands on its share to the next.
    alike(given.gradients(outputs), given.gradients(given.step_by_step()), tolerance=0.03)


def test_a_gradient_of_states_alone_or_of_contexts_alone():
    given = Given()
    for which in (0, 1):
        ours, wanted = given.at_once(), given.step_by_step()
        assert ours is not None
        leaves = given.leaves
        mine, theirs = (torch.autograd.grad(out[which].square().sum(), leaves) for out in (ours, wanted))
        alike(list(mine), list(theirs), tolerance=5e-6)


def test_results_do_not_depend_on_the_rows_beside():
    given = Given()
    whole = given.at_once()
    assert whole is not None
    given.inputs = [x[:, 1:2] if x.dim() == 3 and len(x) == STEPS else x[1:2] for x in given.inputs]
    given.lengths = given.lengths[1:2]
    alone = given.at_once()
    assert alone is not None
    alike([out[:, 0] for out in alone], [out[:, 1] for out in whole], tolerance=1e-6)


def test_loops_share_rows_among_threads_without_a_trace(monkeypatch):
    given = Given()
    given.inputs = [torch.randn(4, 300, 3 * HIDDEN), torch.randn(300, HIDDEN), torch.randn(300, VALUE_DIM)]
    given.inputs += [torch.randn(300, 40, DIM), torch.randn(300, 40, VALUE_DIM)]
    given.inputs = [x.requires_grad_() for x in given.inputs]
    given.lengths = torch.randint(0, 41, (300,))
    before, results = torch.get_num_threads(), []
    # Products may add in another order on more threads: here the loops alone have them.
    linear = recurrent_run.linear

    def on_one_thread(*inputs: Tensor) -> Tensor:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        out = linear(*inputs)
        torch.set_num_threads(threads)
        return out

    monkeypatch.setattr(recurrent_run, "linear", on_one_thread)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outputs = given.at_once()
            assert outputs is not None
            results.append([*outputs, *torch.autograd.grad(sum(out.square().sum() for out in outputs), given.inputs)])
    finally:
        torch.set_num_threads(before)
    for one, other in pairwise(results):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("size", [REACH, -REACH])
def test_the_largest_keys_and_any_queries_are_right(size):
    given = Given()
    with torch.no_grad():
        given.inputs[3].fill_(size)
        given.inputs[3][:, 0] = -size
        given.query.mul_(100)
    ours = given.gradients(given.at_once())
    assert all(x.isfinite().all() for x in ours)
    alike(ours[:2], given.gradients(given.step_by_step())[:2], tolerance=5e-6)


@pytest.mark.parametrize("size", [2 * REACH, float("nan"), float("inf")])
def test_keys_beyond_reach_are_left_to_others(size):
    given = Given()
    with torch.no_grad():
        given.inputs[3][0, 0, 0] = size
    assert given.at_once() is None


def test_what_is_no_number_stays_so_in_its_own_row():
    given = Given()
    with torch.no_grad():
        given.inputs[0][2, 1] = float("nan")
    outputs = given.at_once()
    assert outputs is not None
    for out in outputs:
        assert out[2:, 1].isnan().all()
        assert out[:2].isfinite().all()
        assert out[:, [0, 2, 3, 4]].isfinite().all()


def test_weights_are_cast_once_a_sequence_not_once_a_step():
    def casts(steps: int) -> int:
        given = Given()
        given.inputs[0] = torch.randn(steps, ROWS, 3 * HIDDEN).requires_grad_()
        with (
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
            torch.autocast("cpu", torch.bfloat16),
        ):
            given.at_once()
        return sum(event.count for event in profile.key_averages() if event.key == "aten::_to_copy")

    assert 0 < casts(12) == casts(3)
