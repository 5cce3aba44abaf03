"""A GRU over a whole sequence as one function equals the steps of torch, forward and backward."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.layers.recurrent.cells import GRUCell
from regard.layers.recurrent.encoder import RecurrentEncoder
from regard.native import table
from regard.native.gru import autograd as gru
from regard.ops.additive import MAX_EXP_INPUT
from regard.ops.dispatch import find
from regard.ops.gru import GRUDecoderState, GRUWeights, ReadWeights, SourceMemory

INPUT, HIDDEN, TIME, LENGTHS = 5, 24, 7, (4, 7, 0, 1, 5)
FULL = (4, 7, 2, 1, 5)
ROWS, STEPS, KEYS, DIM, VALUE_DIM = 5, 6, 7, 21, 13


def make_encoder(**sizes) -> RecurrentEncoder:
    encoder = RecurrentEncoder(INPUT, HIDDEN, cell="gru", **sizes)
    for parameter in encoder.parameters():  # biases too, which start at zero
        nn.init.normal_(parameter, std=0.4)
    return encoder


def run_encoder(
    encoder: RecurrentEncoder, items: Tensor, lengths: tuple[int, ...] = LENGTHS
) -> list[Tensor]:
    """Return states, finals, and the gradients of a weighted sum of all their elements."""
    leaf = items.clone().requires_grad_()
    encoded = encoder(Padded(leaf, torch.tensor(lengths)))
    outputs = [encoded.states, *(part for final in encoded.finals for part in final)]
    total = sum((out * gradient_weights(out)).sum() for out in outputs)
    assert isinstance(total, Tensor)
    gradients = torch.autograd.grad(total, [leaf, *encoder.parameters()])
    return [out.detach() for out in (*outputs, *gradients)]


def gradient_weights(out: Tensor) -> Tensor:
    return torch.sin(torch.arange(out.numel(), dtype=out.dtype)).view(out.shape)


def assert_close(ours: list[Tensor], expected: list[Tensor], tolerance: float = 2e-6) -> None:
    """Check that tensors are equal up to rounding, relative to the largest element."""
    for x, theirs in zip(ours, expected, strict=True):
        assert x.shape == theirs.shape
        assert (x - theirs).abs().max() <= tolerance * (1 + theirs.abs().max())


def disable_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the compiled path, leaving the reference."""
    monkeypatch.setattr(table, "_accepts_gru", lambda *_: False)


@pytest.mark.parametrize(("layers", "directions"), [(1, 1), (1, 2), (3, 1), (2, 2)])
def test_encoder_equals_torch(layers, directions, monkeypatch):
    encoder = make_encoder(layers=layers, directions=directions)
    items = torch.randn(len(LENGTHS), TIME, INPUT)
    calls = []
    implementation = find("gru_encode")
    encode = implementation.run
    monkeypatch.setitem(
        vars(implementation), "run", lambda *inputs: calls.append(1) or encode(*inputs)
    )
    ours = run_encoder(encoder, items, FULL)
    assert len(calls) == layers
    disable_compiled(monkeypatch)
    assert_close(ours, run_encoder(encoder, items, FULL))
    assert len(calls) == layers


def test_encoder_in_half_precision_is_as_accurate_as_its_products(monkeypatch):
    encoder, items = make_encoder(), torch.randn(len(LENGTHS), TIME, INPUT)
    with torch.autocast("cpu", torch.bfloat16):
        ours = run_encoder(encoder, items, FULL)
    disable_compiled(monkeypatch)
    assert_close(ours, run_encoder(encoder, items, FULL), tolerance=0.03)


def test_padding_has_no_effect_and_an_empty_row_has_zero_states_and_gradients():
    encoder, items = make_encoder(), torch.randn(len(LENGTHS), TIME, INPUT)
    absent = torch.arange(TIME) >= torch.tensor(LENGTHS)[:, None]
    refilled = torch.where(absent[..., None], torch.randn_like(items), items)
    results, empty = run_encoder(encoder, items), LENGTHS.index(0)
    for actual, expected in zip(results, run_encoder(encoder, refilled), strict=True):
        assert torch.equal(actual, expected)
    assert all(part[empty].eq(0).all() for part in results[:3])


class DecoderInputs:
    """Inputs of a decoder, all with gradients."""

    def __init__(self) -> None:
        self.cell = GRUCell(INPUT, HIDDEN, context_dim=VALUE_DIM)
        for parameter in self.cell.parameters():
            nn.init.normal_(parameter, std=0.2)
        self.draw(STEPS, ROWS, KEYS)
        self.query, self.v = (
            torch.randn(shape).mul(0.3).requires_grad_() for shape in ((DIM, HIDDEN), (DIM,))
        )
        self.lengths = torch.tensor(LENGTHS)

    def draw(self, steps: int, rows: int, keys: int) -> None:
        """Draw projected targets, state, context, keys and values."""
        shapes = (steps, rows, 3 * HIDDEN), (rows, HIDDEN), (rows, VALUE_DIM)
        shapes = *shapes, (rows, keys, DIM), (rows, keys, VALUE_DIM)
        self.tensors = [torch.randn(shape).requires_grad_() for shape in shapes]

    @property
    def leaves(self) -> list[Tensor]:
        weights = self.cell.state_weight, self.cell.state_bias, self.cell.context_weight
        return [*self.tensors, *weights, self.query, self.v]

    def run_compiled(self) -> tuple[Tensor, Tensor] | None:
        state = self.cell.state_weight
        bias = self.cell.state_bias
        context = self.cell.context_weight
        assert context is not None
        cell = GRUWeights(self.cell.input_weight, self.cell.bias, state, bias, context)
        projected, hidden, read, keys, values = self.tensors
        memory, weights = SourceMemory(keys, values, self.lengths), ReadWeights(self.query, self.v)
        return gru.decode(projected, GRUDecoderState(hidden, read), memory, cell, weights)

    def run_reference(self) -> tuple[Tensor, Tensor]:
        """Compute the formulas step by step."""
        projected, state, context, keys, values = self.tensors
        hidden = torch.arange(KEYS) >= self.lengths[:, None]
        states, contexts = [], []
        for item in projected:
            (state,) = self.cell(item, (state,), context=context)
            scores = torch.tanh((state @ self.query.t())[:, None] + keys) @ self.v
            shares = scores.masked_fill(hidden, -1e9).softmax(-1).masked_fill(hidden, 0)
            context = (shares[..., None] * values).sum(1)
            states.append(state)
            contexts.append(context)
        return torch.stack(states), torch.stack(contexts)

    def gradients(self, outputs: tuple[Tensor, Tensor] | None) -> list[Tensor]:
        assert outputs is not None
        total = sum((out.float() * gradient_weights(out.float())).sum() for out in outputs)
        assert isinstance(total, Tensor)
        gradients = torch.autograd.grad(total, self.leaves)
        return [*(out.detach().float() for out in outputs), *gradients]


def test_decoder_equals_its_formulas():
    inputs = DecoderInputs()
    ours, expected = inputs.run_compiled(), inputs.run_reference()
    assert_close(inputs.gradients(ours), inputs.gradients(expected), tolerance=5e-6)


def test_decoder_in_half_precision_is_as_accurate_as_its_products():
    inputs = DecoderInputs()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = inputs.run_compiled()
    assert outputs is not None
    assert outputs[0].dtype == torch.bfloat16
    # The rounding errors of products accumulate over the steps.
    expected = inputs.gradients(inputs.run_reference())
    assert_close(inputs.gradients(outputs), expected, tolerance=0.03)


def test_a_gradient_of_states_alone_or_of_contexts_alone():
    inputs = DecoderInputs()
    for which in (0, 1):
        ours, expected = inputs.run_compiled(), inputs.run_reference()
        assert ours is not None
        leaves = inputs.leaves
        actual, theirs = (
            torch.autograd.grad(out[which].square().sum(), leaves) for out in (ours, expected)
        )
        assert_close(list(actual), list(theirs), tolerance=5e-6)


def test_results_do_not_depend_on_other_rows():
    inputs = DecoderInputs()
    batched = inputs.run_compiled()
    assert batched is not None
    inputs.tensors = [
        x[:, 1:2] if x.dim() == 3 and len(x) == STEPS else x[1:2] for x in inputs.tensors
    ]
    inputs.lengths = inputs.lengths[1:2]
    single = inputs.run_compiled()
    assert single is not None
    assert_close([out[:, 0] for out in single], [out[:, 1] for out in batched], tolerance=1e-6)


def test_loops_do_not_depend_on_threads(monkeypatch):
    inputs = DecoderInputs()
    inputs.draw(4, 300, 40)
    inputs.lengths = torch.randint(0, 41, (300,))
    before, results = torch.get_num_threads(), []
    # Products may sum in a different order with more threads: here only the loops use several.
    linear = gru.linear

    def on_one_thread(*inputs: Tensor) -> Tensor:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        out = linear(*inputs)
        torch.set_num_threads(threads)
        return out

    monkeypatch.setattr(gru, "linear", on_one_thread)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outputs = inputs.run_compiled()
            assert outputs is not None
            total = sum(out.square().sum() for out in outputs)
            results.append([*outputs, *torch.autograd.grad(total, inputs.tensors)])
    finally:
        torch.set_num_threads(before)
    for first, second in pairwise(results):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("size", [MAX_EXP_INPUT, -MAX_EXP_INPUT])
def test_the_largest_keys_and_any_queries_are_accurate(size):
    inputs = DecoderInputs()
    with torch.no_grad():
        inputs.tensors[3].fill_(size)
        inputs.tensors[3][:, 0] = -size
        inputs.query.mul_(100)
    ours = inputs.gradients(inputs.run_compiled())
    assert all(x.isfinite().all() for x in ours)
    assert_close(ours[:2], inputs.gradients(inputs.run_reference())[:2], tolerance=5e-6)


@pytest.mark.parametrize("size", [2 * MAX_EXP_INPUT, float("nan"), float("inf")])
def test_keys_beyond_the_limit_are_not_supported(size):
    inputs = DecoderInputs()
    with torch.no_grad():
        inputs.tensors[3][0, 0, 0] = size
    assert inputs.run_compiled() is None


def test_nan_propagates_only_within_its_row():
    inputs = DecoderInputs()
    with torch.no_grad():
        inputs.tensors[0][2, 1] = float("nan")
    outputs = inputs.run_compiled()
    assert outputs is not None
    for out in outputs:
        assert out[2:, 1].isnan().all()
        assert out[:2].isfinite().all()
        assert out[:, [0, 2, 3, 4]].isfinite().all()


def test_weights_are_cast_once_per_sequence():
    def casts(steps: int) -> int:
        inputs = DecoderInputs()
        inputs.tensors[0] = torch.randn(steps, ROWS, 3 * HIDDEN).requires_grad_()
        with (
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile,
            torch.autocast("cpu", torch.bfloat16),
        ):
            inputs.run_compiled()
        return sum(event.count for event in profile.key_averages() if event.key == "aten::_to_copy")

    assert 0 < casts(12) == casts(3)
