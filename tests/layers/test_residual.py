"""Add & norm in both orders, by hand."""

import pytest
import torch

from regard.attention.kernels.rounded import take
from regard.layers.linear import Linear
from regard.layers.residual import Residual
from tests.helpers import close


def normalized(items: torch.Tensor) -> torch.Tensor:
    return (items - items.mean(-1, keepdim=True)) / torch.sqrt(items.var(-1, correction=0, keepdim=True) + 1e-5)


def test_post_normalizes_the_sum_over_the_last_axis():
    items = torch.randn(2, 3, 7).double()
    close(Residual(7).double()(items, torch.sin), normalized(items + items.sin()))


def test_pre_normalizes_what_the_part_sees():
    items = torch.randn(2, 3, 7).double()
    close(Residual(7, order="pre").double()(items, torch.sin), items + normalized(items).sin())


def test_post_output_has_mean_zero_and_variance_one():
    out = Residual(64)(torch.randn(5, 64) * 3 + 2, lambda x: x)
    close(out.mean(-1), torch.zeros(5))
    assert (out.var(-1, correction=0) - 1).abs().max() < 1e-4


@pytest.mark.parametrize("order", ["pre", "post"])
def test_dropout_falls_on_the_part_alone(order):
    residual = Residual(7, order=order, dropout=0.999)
    items = torch.randn(2, 3, 7)
    alone = Residual(7, order=order)(items, torch.zeros_like)
    assert torch.equal(residual(items, torch.zeros_like), alone)
    assert (residual(items, torch.ones_like) == alone).float().mean() > 0.9


def test_residual_refuses_an_unknown_order():
    with pytest.raises(ValueError, match="order must be post or pre, but is 'both'"):
        Residual(7, order="both")


def exact(residual: Residual, items: torch.Tensor, made: torch.Tensor, mask: torch.Tensor, *, order: str):
    """Output and gradients of items, made, weight and bias by torch in float64."""
    leaves = [t.detach().double().requires_grad_() for t in (items, made, residual.norm.weight, residual.norm.bias)]
    total = leaves[0] + mask.double() * leaves[1]
    out = total if order == "pre" else torch.nn.functional.layer_norm(total, total.shape[-1:], *leaves[2:])
    wanted = leaves if order == "post" else leaves[:2]
    return out, torch.autograd.grad(out, wanted, ramp(out))


def ramp(out: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(5, 16), (2, 3, 7), (67, 133), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_pass_is_dropout_sum_and_norm_with_their_gradients(order, share, shape, dtype):
    residual = Residual(shape[-1], order=order, dropout=share)
    torch.nn.init.normal_(residual.norm.weight)
    torch.nn.init.normal_(residual.norm.bias)
    items = torch.randn(shape, requires_grad=True)
    made = torch.randn(shape).to(dtype).requires_grad_()
    torch.manual_seed(3)
    out = residual(items, lambda _: made)
    torch.manual_seed(3)
    mask = residual.dropout(torch.ones(shape))  # the same draw of the same generator
    expected, gradients = exact(residual, items, made, mask, order=order)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=3e-5)
    leaves = [items, made, residual.norm.weight, residual.norm.bias][: 4 if order == "post" else 2]
    for ours, theirs in zip(torch.autograd.grad(out, leaves, ramp(out)), gradients, strict=True):
        rough = 1e-2 if ours.dtype == torch.bfloat16 else 1e-4
        assert (ours.double() - theirs).abs().max() <= rough * (theirs.abs().max() + 1), (ours, theirs)


def test_one_pass_does_not_depend_on_threads():
    residual, before = Residual(133, dropout=0.3), torch.get_num_threads()
    items, made = torch.randn(900, 133, requires_grad=True), torch.randn(900, 133, requires_grad=True)
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(3)
            out = residual(items, lambda _: made)
            found.append([out, *torch.autograd.grad(out, [items, made, residual.norm.weight], ramp(out))])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_gradients_of_gradients_go_through_the_one_pass():
    residual = Residual(7, dropout=0.3)
    items, made = torch.randn(5, 7, requires_grad=True), torch.randn(5, 7, requires_grad=True)

    def second(function):
        torch.manual_seed(3)
        (first,) = torch.autograd.grad(function().pow(3).sum(), made, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), (items, made))

    ours = second(lambda: residual(items, lambda _: made))
    theirs = second(lambda: residual.norm(items + residual.dropout(made)))
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() <= 1e-3 * (other.abs().max() + 1)


def test_nan_stays_nan_in_the_one_pass():
    for dtype in (torch.float32, torch.bfloat16):
        made = torch.zeros(3, 7, dtype=dtype).requires_grad_()
        made.data[1, 2] = float("nan")
        out = Residual(7)(torch.randn(3, 7), lambda _, made=made: made)
        assert out.isnan().any(-1).tolist() == [False, True, False]
        (gradient,) = torch.autograd.grad(out.sum(), made)
        assert gradient[1].isnan().all()
        assert not gradient[[0, 2]].isnan().any()


def test_under_autocast_the_result_brings_its_rounding_along_and_products_take_it():
    residual, product = Residual(16, dropout=0.3), Linear(16, 5)
    made = torch.randn(67, 16)

    def run(*, takes: bool) -> list[torch.Tensor]:
        items = ramp(torch.ones(67, 16)).requires_grad_()
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16):
            out = residual(items, lambda _: made.bfloat16())
            assert torch.equal(take(out), out.bfloat16())
            asked = product(out if takes else out * 1)
        total = asked.float().pow(2).sum() + out.sum()
        return [out, asked, *torch.autograd.grad(total, [items, product.weight, residual.norm.weight])]

    for one, other in zip(run(takes=True), run(takes=False), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_what_was_rounded_is_not_taken_after_a_change_nor_outside_of_autocast():
    items = torch.randn(5, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = Residual(16)(items, torch.sin)
        assert take(out).dtype == torch.bfloat16
        out.mul_(2)
        assert take(out) is out
        out = Residual(16)(items, torch.sin)
    assert take(out) is out


def test_gradients_of_the_rounding_alone_and_of_gradients():
    residual, items = Residual(7), torch.randn(5, 7, requires_grad=True)

    def first(function, *, again: bool) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            total = function(residual(items, torch.sin)).float().pow(3).sum()
        return torch.autograd.grad(total, items, create_graph=again)[0]

    expected = first(lambda out: (out * 1).bfloat16(), again=False)
    for again in (False, True):
        torch.testing.assert_close(first(take, again=again), expected, rtol=1e-4, atol=1e-4)
