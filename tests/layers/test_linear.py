"""Linear layers: equal values and gradients by every kernel, and the selection of the kernel."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, vmap
from torch.nn import functional

from regard.layers.feedforward import FeedForward
from regard.layers.linear import Linear, fused_linear
from regard.native import linear as onednn
from regard.native import table
from regard.ops.dispatch import native
from regard.ops.linear import linear


def assert_near(actual, expected, atol=2e-5):
    """Assert that values agree within the error of float32 sums, for any dtypes."""
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-5, atol=atol)


NEEDS_ONEDNN = pytest.mark.skipif(
    onednn.onednn_operators() is None, reason="this torch has no oneDNN operators"
)


@pytest.fixture
def eager(monkeypatch):
    """Compute every product by oneDNN, on any processor and of any size."""
    monkeypatch.setattr(table, "is_onednn_faster", lambda: True)
    monkeypatch.setattr(table, "_MIN_PRODUCT_WITH_GRADIENTS", 0)
    monkeypatch.setattr("regard.ops.linear.MIN_COMPILED", 0)


def uses_onednn(x, weight):
    return native("linear", x, weight) is not None


def compute_float64(x, weight, bias, *, relu, gradient):
    """Return output and gradients by torch in float64."""
    leaves = [
        None if t is None else t.detach().double().requires_grad_() for t in (x, weight, bias)
    ]
    out = functional.linear(*leaves)
    out = out.relu() if relu else out
    results = torch.autograd.grad(
        out, [leaf for leaf in leaves if leaf is not None], gradient.double()
    )
    return [out, *results]


def inputs():
    """Return inputs (..., 37) of every supported layout, by name."""
    wide = torch.randn(3, 5, 74)
    return {
        "plain": torch.randn(11, 37),
        "one row": torch.randn(1, 37),
        "vector": torch.randn(37),
        "axes": torch.randn(3, 5, 37),
        "transposed": torch.randn(37, 11).t(),
        "swapped": torch.randn(5, 3, 37).transpose(0, 1),
        "strided": wide[..., ::2],
        "expanded": torch.randn(1, 37).expand(4, 37),
    }


@NEEDS_ONEDNN
@pytest.mark.parametrize("layout", list(inputs()))
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("relu", [False, True])
def test_values_and_gradients_are_those_of_float64(eager, layout, has_bias, relu):
    x, weight = inputs()[layout], torch.randn(23, 37, requires_grad=True)
    bias = torch.randn(23, requires_grad=True) if has_bias else None
    x = x.requires_grad_()
    assert uses_onednn(x, weight)
    out = linear(x, weight, bias, relu=relu)
    assert out.shape == (*x.shape[:-1], 23)
    gradient = torch.randn(out.shape)
    results = torch.autograd.grad(out, [t for t in (x, weight, bias) if t is not None], gradient)
    for ours, theirs in zip(
        [out, *results], compute_float64(x, weight, bias, relu=relu, gradient=gradient), strict=True
    ):
        assert_near(ours.double(), theirs, atol=2e-5)


@NEEDS_ONEDNN
@pytest.mark.parametrize("needs", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1)])
def test_gradients_are_computed_for_inputs_that_need_them(eager, needs):
    tensors = [torch.randn(7, 13), torch.randn(5, 13), torch.randn(5)]
    for tensor, need in zip(tensors, needs, strict=True):
        tensor.requires_grad_(bool(need))
    out = linear(*tensors)
    expanded = torch.ones(()).expand(7, 5)  # the gradient of sum()
    out.backward(expanded)
    expected = compute_float64(*tensors, relu=False, gradient=expanded)[1:]
    for tensor, need, theirs in zip(tensors, needs, expected, strict=True):
        if need:
            assert_near(tensor.grad.double(), theirs, atol=2e-5)
        else:
            assert tensor.grad is None


@NEEDS_ONEDNN
def test_gradients_of_gradients_equal_those_of_torch(eager):
    x, weight, bias = (
        torch.randn(*shape, requires_grad=True) for shape in ((7, 13), (5, 13), (5,))
    )

    def penalty(function):
        (first,) = torch.autograd.grad(function(x, weight, bias).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), (x, weight, bias))

    for ours, theirs in zip(penalty(linear), penalty(functional.linear), strict=True):
        assert_near(ours, theirs, atol=1e-2)


@NEEDS_ONEDNN
def test_vmap_equals_torch(eager):
    x, weight = torch.randn(3, 7, 13), torch.randn(5, 13)
    assert_near(vmap(lambda row: linear(row, weight))(x), functional.linear(x, weight))
    assert_near(grad(lambda w: linear(x, w).sum())(weight), x.sum((0, 1)).expand(5, 13), atol=1e-5)


@NEEDS_ONEDNN
def test_only_plain_float32_tensors_on_a_cpu_use_onednn(eager):
    x, weight = torch.randn(7, 13), torch.randn(5, 13)
    assert uses_onednn(x, weight)
    assert uses_onednn(x, torch.randn(13, 5).t())
    assert not uses_onednn(x.double(), weight.double())
    assert not uses_onednn(x.bfloat16(), weight.bfloat16())
    assert not uses_onednn(x.to("meta"), weight.to("meta"))
    assert not uses_onednn(x, torch.randn(5, 26)[:, ::2])
    with torch.autocast("cpu", torch.bfloat16):
        assert not uses_onednn(x, weight)
        assert linear(x, weight).dtype == torch.bfloat16


def test_small_products_and_other_processors_use_torch(monkeypatch):
    monkeypatch.setattr(table, "is_onednn_faster", lambda: True)
    assert not uses_onednn(torch.randn(7, 13), torch.randn(5, 13))
    assert uses_onednn(torch.randn(4096, 64), torch.randn(64, 64))
    assert uses_onednn(torch.randn(1, 1, 512), torch.randn(1024, 512))
    assert not uses_onednn(torch.randn(1, 1, 512), torch.randn(1023, 512))
    assert not uses_onednn(torch.randn(2, 512), torch.randn(1024, 512))
    monkeypatch.setattr(table, "is_onednn_faster", lambda: False)
    x, weight, bias = torch.randn(4096, 64), torch.randn(64, 64), torch.randn(64)
    assert not uses_onednn(x, weight)
    assert torch.equal(linear(x, weight, bias), functional.linear(x, weight, bias))


@pytest.mark.parametrize("vendor", ["GenuineIntel", "AuthenticAMD"])
def test_onednn_is_used_on_processors_whose_lanes_mkl_leaves_unused(monkeypatch, vendor):
    monkeypatch.setattr(onednn.Path, "read_text", lambda *_, **_options: f"vendor_id : {vendor}")
    monkeypatch.setattr(onednn, "onednn_operators", lambda: (None, None))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert onednn.is_onednn_faster.__wrapped__() == (vendor == "AuthenticAMD")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not onednn.is_onednn_faster.__wrapped__()


def test_torch_without_onednn_operators_uses_its_own_products(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert onednn.onednn_operators.__wrapped__() is None


def test_weights_of_torchs_linear_load():
    theirs, ours = torch.nn.Linear(7, 5), Linear(7, 5)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 7)
    assert_near(ours(x), theirs(x))


@pytest.mark.parametrize("has_bias", [True, False])
def test_fused_layers_equal_separate_ones(monkeypatch, has_bias):
    monkeypatch.setattr("regard.layers.linear._MIN_FUSED_SIZE", 0)
    maps = [Linear(13, size, bias=has_bias) for size in (5, 7, 2)]
    x = torch.randn(3, 11, 13, requires_grad=True)
    leaves = [x, *(p for part in maps for p in part.parameters())]
    separate, results = [part(x) for part in maps], fused_linear(x, *maps)
    gradients = [torch.randn(out.shape) for out in separate]
    for ours, theirs in zip(results, separate, strict=True):
        assert_near(ours, theirs, atol=1e-5)
    ours, theirs = (torch.autograd.grad(outs, leaves, gradients) for outs in (results, separate))
    for actual, expected in zip(ours, theirs, strict=True):
        assert_near(actual, expected, atol=1e-5)


@NEEDS_ONEDNN
def test_feed_forward_is_its_formula_by_either_kernel(eager):
    x, layer = torch.randn(3, 11, 13), FeedForward(13, 29)
    hidden = torch.relu(functional.linear(x, layer.expand.weight, layer.expand.bias))
    assert_near(
        layer(x), functional.linear(hidden, layer.contract.weight, layer.contract.bias), atol=1e-5
    )


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)  # torch's own, within
def test_forward_mode_derivatives(eager):
    x, weight, tangent = torch.randn(6, 5), torch.randn(4, 5), torch.randn(6, 5)
    with forward_ad.dual_level():
        out = linear(forward_ad.make_dual(x, tangent), weight)
        assert_near(forward_ad.unpack_dual(out).tangent, tangent @ weight.t())
