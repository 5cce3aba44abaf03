"""Add & norm in both orders against explicit formulas."""

import pytest
import torch

from regard.attention.masks import Padded
from regard.layers.linear import Linear
from regard.layers.residual import Residual
from regard.models.cores.transformer import Transformer
from regard.ops.linear import get_bfloat16
from tests.helpers import NEEDS_NATIVE, close


def normalized(items: torch.Tensor) -> torch.Tensor:
    return (items - items.mean(-1, keepdim=True)) / torch.sqrt(
        items.var(-1, correction=0, keepdim=True) + 1e-5
    )


def test_post_normalizes_the_sum_over_the_last_axis():
    items = torch.randn(2, 3, 7).double()
    close(Residual(7).double()(items, torch.sin), normalized(items + items.sin()))


def test_pre_normalizes_the_input_of_the_sublayer():
    items = torch.randn(2, 3, 7).double()
    close(Residual(7, order="pre").double()(items, torch.sin), items + normalized(items).sin())


@pytest.mark.parametrize("order", ["pre", "post", "none"])
@pytest.mark.usefixtures("no_shape_checks")
def test_sublayer_of_another_shape_is_refused(order):
    with pytest.raises(
        ValueError, match=r"must keep the shape of items, \(2, 3, 4\), got \(2, 3, 1\)"
    ):
        Residual(4, order=order)(torch.randn(2, 3, 4), lambda items: items[..., :1])


def test_post_output_has_mean_zero_and_variance_one():
    out = Residual(64)(torch.randn(5, 64) * 3 + 2, lambda x: x)
    close(out.mean(-1), torch.zeros(5))
    assert (out.var(-1, correction=0) - 1).abs().max() < 1e-4


@pytest.mark.parametrize("order", ["pre", "post"])
def test_dropout_applies_only_to_the_sublayer(order):
    residual = Residual(7, order=order, dropout=0.999)
    items = torch.randn(2, 3, 7)
    alone = Residual(7, order=order)(items, torch.zeros_like)
    assert torch.equal(residual(items, torch.zeros_like), alone)
    assert (residual(items, torch.ones_like) == alone).float().mean() > 0.9


def reference_gradients(
    residual: Residual, items: torch.Tensor, branch: torch.Tensor, mask: torch.Tensor, *, order: str
):
    """Return output and gradients of items, branch, weight and bias by torch in float64."""
    tensors = items, branch, residual.norm.weight, residual.norm.bias
    leaves = [t.detach().double().requires_grad_() for t in tensors]
    out = leaves[0] + mask.double() * leaves[1]
    if order == "pre":
        return out, torch.autograd.grad(out, leaves[:2], output_gradient(out))
    out = torch.nn.functional.layer_norm(out, out.shape[-1:], *leaves[2:])
    return out, torch.autograd.grad(out, leaves, output_gradient(out))


def output_gradient(out: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(5, 16), (2, 3, 7), (67, 133), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_pass_equals_dropout_sum_and_norm_with_gradients(order, share, shape, dtype):
    residual = Residual(shape[-1], order=order, dropout=share)
    torch.nn.init.normal_(residual.norm.weight)
    torch.nn.init.normal_(residual.norm.bias)
    items = torch.randn(shape, requires_grad=True)
    branch = torch.randn(shape).to(dtype).requires_grad_()
    torch.manual_seed(3)
    out = residual(items, lambda _: branch)
    torch.manual_seed(3)
    mask = residual.dropout(torch.ones(shape))  # the same draw of the same generator
    expected, gradients = reference_gradients(residual, items, branch, mask, order=order)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=3e-5)
    leaves = [items, branch]
    if order == "post":
        leaves += [residual.norm.weight, residual.norm.bias]
    actual = torch.autograd.grad(out, leaves, output_gradient(out))
    for ours, theirs in zip(actual, gradients, strict=True):
        tolerance = 1e-2 if ours.dtype == torch.bfloat16 else 1e-4
        assert (ours.double() - theirs).abs().max() <= tolerance * (theirs.abs().max() + 1)


def test_fused_pass_does_not_depend_on_threads():
    residual, before = Residual(133, dropout=0.3), torch.get_num_threads()
    items = torch.randn(900, 133, requires_grad=True)
    branch = torch.randn(900, 133, requires_grad=True)
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(3)
            out = residual(items, lambda _: branch)
            leaves = [items, branch, residual.norm.weight]
            results.append([out, *torch.autograd.grad(out, leaves, output_gradient(out))])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_gradients_of_gradients_of_the_fused_pass():
    residual = Residual(7, dropout=0.3)
    items, branch = torch.randn(5, 7, requires_grad=True), torch.randn(5, 7, requires_grad=True)

    def second(function):
        torch.manual_seed(3)
        (first,) = torch.autograd.grad(function().pow(3).sum(), branch, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), (items, branch))

    ours = second(lambda: residual(items, lambda _: branch))
    theirs = second(lambda: residual.norm(items + residual.dropout(branch)))
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).abs().max() <= 1e-3 * (b.abs().max() + 1)


def test_nan_propagates_in_the_fused_pass():
    for dtype in (torch.float32, torch.bfloat16):
        branch = torch.zeros(3, 7, dtype=dtype).requires_grad_()
        branch.data[1, 2] = float("nan")
        out = Residual(7)(torch.randn(3, 7), lambda _, branch=branch: branch)
        assert out.isnan().any(-1).tolist() == [False, True, False]
        (gradient,) = torch.autograd.grad(out.sum(), branch)
        assert gradient[1].isnan().all()
        assert not gradient[[0, 2]].isnan().any()


@NEEDS_NATIVE
def test_products_use_the_bfloat16_copy_under_autocast():
    residual, product = Residual(16, dropout=0.3), Linear(16, 5)
    branch = torch.randn(67, 16)

    def run(*, uses_copy: bool) -> list[torch.Tensor]:
        items = output_gradient(torch.ones(67, 16)).requires_grad_()
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16):
            out = residual(items, lambda _: branch.bfloat16())
            assert torch.equal(get_bfloat16(out), out.bfloat16())
            projected = product(out if uses_copy else out * 1)
        total = projected.float().pow(2).sum() + out.sum()
        leaves = [items, product.weight, residual.norm.weight]
        return [out, projected, *torch.autograd.grad(total, leaves)]

    for a, b in zip(run(uses_copy=True), run(uses_copy=False), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@NEEDS_NATIVE
def test_bfloat16_copy_is_not_used_after_a_change_or_outside_autocast():
    items = torch.randn(5, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = Residual(16)(items, torch.sin)
        assert get_bfloat16(out).dtype == torch.bfloat16
        out.mul_(2)
        assert get_bfloat16(out) is out
        out = Residual(16)(items, torch.sin)
    assert get_bfloat16(out) is out


def test_gradients_of_the_bfloat16_copy_and_gradients_of_gradients():
    residual, items = Residual(7), torch.randn(5, 7, requires_grad=True)

    def first(function, *, again: bool) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            total = function(residual(items, torch.sin)).float().pow(3).sum()
        return torch.autograd.grad(total, items, create_graph=again)[0]

    expected = first(lambda out: (out * 1).bfloat16(), again=False)
    for again in (False, True):
        torch.testing.assert_close(first(get_bfloat16, again=again), expected, rtol=1e-4, atol=1e-4)


@NEEDS_NATIVE
def test_gradients_of_hidden_states_include_those_of_their_bfloat16_copies():
    core = Transformer(layers=2, width=16, heads=2, norm_order="post", decodes=False, dropout=0)
    items = torch.randn(3, 5, 16)

    def loss(replace):
        """Return the loss, after the output of the first block was replaced."""
        handle = core.encoder[0].register_forward_hook(lambda *outputs: replace(outputs[-1]))
        with torch.autocast("cpu", torch.bfloat16):
            encoded = core.encode(Padded(items, torch.tensor([5, 3, 4]))).items
        handle.remove()
        return (encoded * output_gradient(encoded)).sum()

    hidden = []
    total = loss(lambda out: hidden.append(out.detach().requires_grad_()) or hidden[0])
    (expected,) = torch.autograd.grad(total, hidden)
    total = loss(lambda out: hidden.append(out) or out.retain_grad())
    (actual,) = torch.autograd.grad(total, hidden[1], retain_graph=True)
    assert hidden[1].grad is not None
    for gradient in (actual, hidden[1].grad):  # the latter is set by its hook
        torch.testing.assert_close(gradient, expected, rtol=1e-2, atol=1e-2)


def test_none_is_the_sublayer_alone():
    residual, items = Residual(7, order="none"), torch.randn(2, 3, 7)
    assert torch.equal(residual(items, torch.sin), items.sin())
    assert list(residual.parameters()) == []
    dropped = Residual(7, order="none", dropout=0.999)(items, torch.ones_like)
    assert (dropped == 0).float().mean() > 0.9
