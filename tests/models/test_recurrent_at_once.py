"""Recurrent core with the compiled decoder: when it is used, and that it equals single steps."""

import copy

import pytest
import torch
from torch import Tensor, nn

from regard.attention.choices import Sparse
from regard.attention.masks import Padded, Unpadded
from regard.layers.recurrent.cells import GRUCell
from regard.look.hooks import record_weights
from regard.models.cores.config import RecurrentConfig
from regard.models.cores.recurrent import Recurrent
from regard.ops.additive import MAX_EXP_INPUT
from regard.ops.dispatch import find

WIDTH, HIDDEN, STEPS, TIME, LENGTHS = 3, 10, 5, 7, (4, 7, 0, 1)
TOLERANCE = {"rtol": 1e-4, "atol": 2e-6}


def make_core(**config) -> Recurrent:
    sizes = {"width": WIDTH, "hidden": HIDDEN, "attention_hidden": 11}
    core = Recurrent(RecurrentConfig(**sizes | config))
    for parameter in core.parameters():  # biases too, which start at zero
        nn.init.normal_(parameter, std=0.4)
    return core


def make_source() -> Padded:
    return Padded(torch.randn(len(LENGTHS), TIME, WIDTH), torch.tensor(LENGTHS))


def make_targets() -> Tensor:
    return torch.randn(len(LENGTHS), STEPS, WIDTH)


def check_steps(core: Recurrent, source: Padded, targets: Tensor) -> None:
    outputs, state = core(targets, core.start(source)), core.start(source)
    for j in range(STEPS):
        hidden, state = core.step(targets[:, j], state)
        torch.testing.assert_close(hidden, outputs[:, j], **TOLERANCE)


@pytest.fixture
def runs(monkeypatch) -> list[int]:
    """List that grows by one at each compiled run of a decoder."""
    counted: list[int] = []
    implementation = find("gru_decode")
    decode = implementation.run

    def counting(*inputs):
        counted.append(1)
        return decode(*inputs)

    monkeypatch.setitem(vars(implementation), "run", counting)
    return counted


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize(
    "sizes", [{}, {"value_map": 6}, {"encoder_hidden": 14}, {"value_map": 6, "encoder_hidden": 4}]
)
def test_compiled_run_equals_steps(directions, learns, sizes, runs):
    core = make_core(directions=directions, **sizes)
    with torch.set_grad_enabled(learns):
        check_steps(core, make_source(), make_targets())
    assert len(runs) == 1


@pytest.mark.parametrize("value_map", [None, 6])
def test_gradients_are_those_of_the_steps_in_double(value_map, runs):
    core, source, targets = make_core(value_map=value_map), make_source(), make_targets()
    exact = copy.deepcopy(core).double()
    for model, dtype in ((core, torch.float32), (exact, torch.float64)):
        out = model(targets.to(dtype), model.start(source._replace(items=source.items.to(dtype))))
        (out * torch.sin(torch.arange(out.numel(), dtype=dtype)).view(out.shape)).sum().backward()
    assert len(runs) == 1
    for (name, parameter), reference in zip(
        core.named_parameters(), exact.parameters(), strict=True
    ):
        torch.testing.assert_close(
            parameter.grad.double(), reference.grad, rtol=1e-4, atol=1e-5, msg=name
        )


def test_source_without_padding(runs):
    core, items, targets = make_core(), torch.randn(len(LENGTHS), TIME, WIDTH), make_targets()
    unpadded = core(targets, core.start(Unpadded.of(items)))
    padded = core(targets, core.start(Padded(items, torch.full((len(LENGTHS),), TIME))))
    assert torch.equal(unpadded, padded)
    assert len(runs) == 2


def test_observers_see_every_read_and_change_nothing(runs):
    core, source, targets = make_core(), make_source(), make_targets()
    expected = core(targets, core.start(source))
    assert len(runs) == 1
    with record_weights(core) as maps:
        recorded = core(targets, core.start(source))
    assert len(maps["read"]) == STEPS + 1
    assert len(runs) == 1
    torch.testing.assert_close(recorded, expected, **TOLERANCE)


@pytest.mark.parametrize("part", ["cells.0", "read", "read.score"])
def test_hooks_on_modules_are_called_at_every_step(part, runs):
    core, source, targets = make_core(), make_source(), make_targets()
    calls = []
    module = core.get_submodule(part)
    register = (
        module.register_forward_hook if part != "read.score" else module.register_forward_pre_hook
    )
    handle = register(lambda *_: calls.append(1))
    core(targets, core.start(source))
    assert not runs
    assert part == "read.score" or len(calls) >= STEPS
    handle.remove()
    core(targets, core.start(source))
    assert len(runs) == 1


class Halving(GRUCell):
    """GRU cell whose state is halved."""

    def forward(self, projected, state, *, context=None):
        return tuple(part / 2 for part in super().forward(projected, state, context=context))


def _with_another_cell(core: Recurrent) -> None:
    core.cells[0].__class__ = Halving


def _with_another_choice(core: Recurrent) -> None:
    core.read.choice = Sparse()


def _with_another_forward(core: Recurrent) -> None:
    cell = core.cells[0]
    forward = cell.forward
    cell.forward = lambda *inputs, **context: (forward(*inputs, **context)[0] / 2,)


def _with_another_kernel(core: Recurrent) -> None:
    core.read.kernel = "reference"


def _with_a_parametrized_weight(core: Recurrent) -> None:
    nn.utils.parametrizations.weight_norm(core.cells[0], "state_weight")


EXCHANGES = (
    _with_another_cell,
    _with_another_choice,
    _with_another_forward,
    _with_another_kernel,
    _with_a_parametrized_weight,
)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_custom_modules_are_used(exchange, runs):
    core = make_core()
    exchange(core)
    check_steps(core, make_source(), make_targets())
    assert not runs


@pytest.mark.parametrize(
    "config",
    [
        {"cell": "lstm"},
        {"cell": "rnn"},
        {"attention": "none"},
        {"attention": "dot"},
        {"decoder_layers": 2},
    ],
)
def test_other_cores_run_step_by_step(config, runs):
    core, source, targets = make_core(**config), make_source(), make_targets()
    core(targets, core.start(source)).sum().backward()
    assert not runs


def test_large_keys_are_read_step_by_step():
    core = make_core()
    nn.init.normal_(core.read.score.key_weight, std=2 * MAX_EXP_INPUT)
    check_steps(core, make_source(), make_targets())


def test_vmap_runs_step_by_step(runs):
    core, source, targets = make_core().eval(), make_source(), make_targets()
    outputs = core(targets, core.start(source))

    def decode_targets(targets: Tensor) -> Tensor:
        return core(targets, core.start(source))

    mapped = torch.func.vmap(decode_targets)(torch.stack((targets, targets)))
    assert len(runs) == 1
    for out in mapped:
        torch.testing.assert_close(out, outputs, **TOLERANCE)
