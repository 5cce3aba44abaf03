"""Dispatch: when an operation is computed by compiled code, and that it equals plain torch."""

import importlib

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import vmap
from torch.utils.flop_counter import FlopCounterMode

from regard.errors import UserError
from regard.layers.norms import RMSNorm
from regard.native.table import OPERATIONS
from regard.ops import dispatch
from regard.ops.dispatch import Native, find, native, unsupported_reason
from regard.ops.dropout import add_dropout, add_dropout_norm, dropout


@pytest.fixture
def set_variable(monkeypatch):
    """Return a function that sets REGARD_NATIVE, for this test alone."""

    def set_to(value: str) -> None:
        monkeypatch.setenv("REGARD_NATIVE", value)
        unsupported_reason.cache_clear()
        find.cache_clear()

    yield set_to
    monkeypatch.undo()
    unsupported_reason.cache_clear()
    find.cache_clear()


@pytest.mark.parametrize("name", OPERATIONS)
def test_table_names_a_function_of_a_module(name):
    if OPERATIONS[name].requires == "triton":
        pytest.importorskip("triton")
    assert callable(OPERATIONS[name].run)


def test_zero_disables_all_operations(set_variable):
    assert native("dropout", torch.ones(3)) is not None
    set_variable("0")
    assert native("dropout", torch.ones(3)) is None
    assert all(find(name) is None for name in OPERATIONS)
    assert unsupported_reason() == "REGARD_NATIVE is 0"


def test_numba_that_compiles_nothing_is_not_used(monkeypatch, set_variable):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    set_variable("1")
    assert native("dropout", torch.ones(3)) is None
    assert unsupported_reason() == "NUMBA_DISABLE_JIT is set, so that numba compiles nothing"


def test_other_values_of_the_variable_raise(set_variable):
    set_variable("no")
    with pytest.raises(UserError, match="REGARD_NATIVE must be 0 or 1, got 'no'"):
        native("dropout", torch.ones(3))


@pytest.mark.parametrize("package", ["numba", "regard.native"])
def test_operations_are_computed_by_torch_if_a_package_is_absent(
    monkeypatch, set_variable, package
):
    find_spec = importlib.util.find_spec
    set_variable("1")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find_spec(name)
    )
    assert all(find(name) is None for name in OPERATIONS)
    assert unsupported_reason() == f"{package} is not installed"


def test_transforms_and_modes_use_torch():
    seen = []

    def observe(x):
        seen.append(native("dropout", x) is None)
        return x

    x = torch.ones(3, 4)
    observe(x)
    vmap(observe)(x)
    torch.func.grad(lambda x: observe(x).sum())(x)
    with FlopCounterMode(display=False):
        observe(x)
    with forward_ad.dual_level():
        observe(x)
    assert seen == [False, True, True, True, True]


def test_rms_norm_of_items_in_half_precision_does_not_warn(recwarn):
    torch.set_warn_always(True)
    assert RMSNorm(8)(torch.randn(2, 8).bfloat16()).dtype == torch.bfloat16
    torch.set_warn_always(False)
    assert not recwarn


@pytest.mark.parametrize("shape", [(7, 5), (3, 2, 8)])
def test_fused_operations_draw_as_often_as_their_parts(shape):
    x, f = torch.randn(shape, requires_grad=True), torch.randn(shape)
    weight, bias = torch.randn(shape[-1]), torch.randn(shape[-1])

    def draws(function) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(5)
        return function().detach(), torch.rand(3)

    separate = draws(lambda: x + dropout(f, 0.3, training=True))
    added = draws(lambda: add_dropout(x, f, 0.3, training=True))
    normed = draws(lambda: add_dropout_norm(x, f, 0.3, weight, bias, epsilon=1e-5, training=True))
    torch.testing.assert_close(added, separate)
    expected = torch.nn.functional.layer_norm(separate[0], shape[-1:], weight, bias)
    torch.testing.assert_close(normed, (expected, separate[1]))
    torch.manual_seed(5)
    unused = torch.rand(3)
    for function in (
        lambda: add_dropout(x, f, 0.0, training=True),
        lambda: add_dropout_norm(x, f, 0.0, weight, bias, epsilon=1e-5, training=True),
        lambda: add_dropout_norm(x, f, 0.3, weight, bias, epsilon=1e-5, training=False),
    ):
        assert torch.equal(draws(function)[1], unused)


def test_implementation_is_loaded_at_the_first_run():
    implementation = Native(lambda x: True, "bits:maximum")
    assert "run" not in vars(implementation)
    assert implementation.run is importlib.import_module("regard.native.bits").maximum
    assert "run" in vars(implementation)
    assert dispatch.native("softmax", torch.ones(3)) is None
