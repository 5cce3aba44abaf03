"""Private APIs of torch: each wrapper does what its docstring says; a changed API fails here."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.compat import torch as compat


class PassThrough(TorchDispatchMode):
    """Dispatch mode that only calls each function."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def observe(function, *transforms):
    """Return what `function` returns inside transforms of torch.func."""
    results = []

    def inner(x):
        results.append(function())
        return x.sum()

    for transform in transforms:
        inner = transform(inner)
    inner(torch.ones(2, 3))
    return results[-1]


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad])
def test_transforms_are_detected(transform):
    assert not compat.is_transformed()
    assert observe(compat.is_transformed, transform)
    assert not observe(compat.is_eager, transform)
    assert compat.is_eager()


def test_dispatch_modes_are_detected():
    with PassThrough():
        assert not compat.is_eager()
        assert not compat.is_transformed()
    assert compat.is_eager()


def test_compilation_is_detected():
    @torch.compile(backend="eager", fullgraph=True)
    def function(x):
        return x + 1 if compat.is_eager() else x + 2

    assert function(torch.zeros(1)).item() == 2.0


def test_forward_mode_is_detected():
    assert not compat.is_forward_ad()
    with torch.autograd.forward_ad.dual_level():
        assert compat.is_forward_ad()
    assert not compat.is_forward_ad()


def test_batched_tensors_are_distinguished_from_others():
    flags = []

    def note(x):
        flags.append((compat.is_batched(x), compat.is_wrapped(x)))
        return x

    torch.func.vmap(note)(torch.ones(2))
    torch.func.grad(note)(torch.ones(()))
    assert flags == [(True, True), (False, True)]
    assert not compat.is_wrapped(torch.ones(2))


def test_unwrapping_returns_the_plain_tensor():
    x = torch.tensor(3.0)
    plain = []
    torch.func.grad(torch.func.grad(lambda y: plain.append(compat.unwrap(y)) or y * y))(x)
    assert not compat.is_wrapped(plain[0])
    assert plain[0].item() == 3


def test_changes_in_place_are_counted():
    x = torch.zeros(3)
    before = compat.version_of(x)
    x.add_(1)
    assert compat.version_of(x) == before + 1
    with torch.inference_mode(), pytest.raises(RuntimeError, match="version counter"):
        compat.version_of(torch.zeros(3))


HOOKS = ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook")


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_of_a_module_are_detected(kind):
    module = nn.Linear(2, 2)
    assert not compat.has_hooks(module)
    assert compat.runs_original_forward(nn.Linear, module)
    handle = getattr(module, f"register_{kind}")(lambda *_: None)
    assert compat.has_hooks(module)
    assert not compat.runs_original_forward(nn.Linear, module)
    handle.remove()
    assert not compat.has_hooks(module)


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_of_all_modules_are_detected(kind):
    module = nn.Linear(2, 2)
    handle = getattr(nn.modules.module, f"register_module_{kind}")(lambda *_: None)
    try:
        assert compat.has_global_hooks()
        assert not compat.runs_original_forward(nn.Linear, module)
    finally:
        handle.remove()
    assert not compat.has_global_hooks()
    assert compat.runs_original_forward(nn.Linear, module)


def test_other_classes_and_own_forwards_are_not_original():
    module = nn.Linear(2, 2)
    assert not compat.runs_original_forward(nn.Module, module)
    module.forward = lambda x: x
    assert not compat.runs_original_forward(nn.Linear, module)


def test_compiled_modules_are_detected():
    module = nn.Linear(2, 2)
    assert not compat.is_compiled(module)
    assert compat.is_compiled(torch.compile(module, backend="eager"))
    module.compile(backend="eager")
    assert compat.is_compiled(module)
    assert not compat.runs_original_forward(nn.Linear, module)


def test_parameters_are_the_modules_own():
    module = nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(2, 2, bias=False))
    assert compat.parameters_of(module) == {}
    own = compat.parameters_of(module[1])
    assert own["weight"] is module[1].weight
    assert own["bias"] is None


def test_a_disabled_function_is_not_compiled():
    compiling = []

    def note():
        compiling.append(torch.compiler.is_compiling())

    disabled = compat.disable_compile(note)

    @torch.compile(backend="eager")
    def function(x):
        disabled()
        return x + 1

    function(torch.zeros(1))
    assert compiling == [False]


def test_the_limit_of_recompilation_holds_inside():
    before = torch._dynamo.config.recompile_limit
    with compat.limit_recompilation(before + 5):
        assert torch._dynamo.config.recompile_limit == before + 5
    assert torch._dynamo.config.recompile_limit == before


def test_interpolation_moves_in_place():
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])
    compat.interpolate_([x], [y], 0.25)
    assert x.tolist() == [1.5, 3.0]
    assert y.tolist() == [3.0, 6.0]


def test_products_of_onednn_equal_torchs():
    operators = compat.onednn_operators()
    if operators is None:
        pytest.skip("this torch has no oneDNN")
    multiply, weight_gradients = operators
    x, weight, bias = torch.randn(7, 5), torch.randn(3, 5), torch.randn(3)
    torch.testing.assert_close(multiply(x, weight, bias, "none", [], ""), x @ weight.T + bias)
    torch.testing.assert_close(
        multiply(x, weight, bias, "relu", [], ""), (x @ weight.T + bias).relu()
    )
    grad = torch.randn(7, 3)
    of_weight, of_bias = weight_gradients(grad.to_mkldnn(), x.to_mkldnn(), weight, True)
    torch.testing.assert_close(
        of_weight.to_dense() if of_weight.is_mkldnn else of_weight, grad.T @ x
    )
    torch.testing.assert_close(of_bias.to_dense() if of_bias.is_mkldnn else of_bias, grad.sum(0))


def test_shapes_on_the_meta_device_need_no_compiler() -> None:
    program = """
import sys, torch
from regard.compat.torch import ShapesOnly
with torch.device("meta"), ShapesOnly(), torch.no_grad():
    table, linear = torch.nn.Embedding(3, 5).weight, torch.nn.Linear(7, 2)
    torch.nn.init.xavier_uniform_(linear.weight)
    linear.weight /= 3.0
    drawn = torch.randn(7, 2) * 0.5
print(*table.shape, *linear.weight.shape, *drawn.shape, "torch._dynamo" in sys.modules)
"""
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["3", "5", "2", "7", "7", "2", "False"]
