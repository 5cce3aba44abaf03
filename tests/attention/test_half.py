"""Half precision: errors against float64 are at most 1.5 times those of torch's fused attention."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.attend import attend, attention_weights
from regard.attention.biases import TensorBias
from regard.attention.choices import Soft
from regard.attention.kernels import products, sdpa, selection
from regard.attention.masks import causal, dense
from regard.ops import half

HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture(params=[False, True], ids=["float32 products", "half-precision products"])
def has_products(request, monkeypatch) -> bool:
    """Simulate processors with and without (fast) half-precision products; torch has both."""
    for module in (products, sdpa, selection):
        monkeypatch.setattr(module, "has_half_products", lambda dtype: request.param)
    return request.param


def draw(dtype: torch.dtype, std: float, *, num: int = 96, dim: int = 48) -> list[Tensor]:
    """Return queries and keys whose scores have this standard deviation, values, a gradient."""
    query, keys, values, gradient = (torch.randn(1, 2, num, dim) for _ in range(4))
    return [x.to(dtype) for x in (query * math.sqrt(std), keys * math.sqrt(std), values, gradient)]


def results(read, tensors: list[Tensor]) -> list[Tensor]:
    """Return the output and the gradients of queries, keys and values."""
    *inputs, gradient = tensors
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = read(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, gradient.to(out.dtype))]


def errors(actual: list[Tensor], exact: list[Tensor]) -> list[float]:
    pairs = zip(actual, exact, strict=True)
    return [((x.double() - y).square().mean() / y.square().mean()).sqrt().item() for x, y in pairs]


def fused(is_causal: bool):
    return lambda query, keys, values: scaled_dot_product_attention(
        query, keys, values, is_causal=is_causal
    )


@pytest.mark.usefixtures("has_products")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("std", [0.25, 1, 4, 16])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kernel", ["auto", "products", "sdpa", "reference"])
def test_errors_are_those_of_fused_attention(dtype, std, is_causal, kernel):
    tensors = draw(dtype, std)
    exact = results(fused(is_causal), [x.double() for x in tensors])
    mask = causal() if is_causal else None
    actual = results(lambda q, k, v: attend(q, (k, v), mask=mask, kernel=kernel), tensors)
    assert all(x.dtype == dtype for x in actual)
    for ours, theirs in zip(
        errors(actual, exact), errors(results(fused(is_causal), tensors), exact), strict=True
    ):
        assert ours <= 1.5 * theirs


@pytest.mark.usefixtures("has_products")
@pytest.mark.parametrize("kernel", ["auto", "products", "sdpa", "reference"])
def test_errors_under_autocast_are_those_of_fused_attention(kernel):
    tensors = draw(torch.bfloat16, 16)
    exact = results(fused(False), [x.double() for x in tensors])
    theirs = errors(results(fused(False), tensors), exact)
    for arguments in (tensors, [x.float() for x in tensors]):
        with torch.autocast("cpu", torch.bfloat16):
            actual = results(lambda q, k, v: attend(q, (k, v), kernel=kernel), arguments)
        assert actual[0].dtype == torch.bfloat16
        assert all(
            ours <= 1.5 * bound for ours, bound in zip(errors(actual, exact), theirs, strict=True)
        )


@pytest.mark.usefixtures("has_products")
@pytest.mark.parametrize("kernel", ["products", "sdpa", "reference"])
@pytest.mark.parametrize(
    "beta", [1.7, torch.tensor([0.7, 1.3]).view(2, 1, 1)], ids=["number", "heads"]
)
def test_masks_biases_and_beta_keep_scores_accurate(kernel, beta):
    *tensors, gradient = draw(torch.bfloat16, 4, num=40)
    bias = torch.randn(2, 40, 40).mul(3).bfloat16().unsqueeze(0)
    mask = dense(torch.rand(40, 40) > 0.3) & causal()
    actual, exact = (
        results(
            lambda q, k, v, b, rule=choice, name=name: attend(
                q, (k, v), mask=mask, bias=TensorBias(b), choice=rule, kernel=name
            ),
            [*arguments, gradient.to(arguments[0].dtype)],
        )
        for arguments, choice, name in (
            ([*tensors, bias], Soft(beta), kernel),
            (
                [x.double() for x in (*tensors, bias)],
                Soft(beta.double() if isinstance(beta, Tensor) else beta),
                "reference",
            ),
        )
    )
    assert max(errors(actual, exact)) < 0.012  # 3 * 2^-8; 0.05 and more where scores are rounded


def test_two_products_give_float32_scores():
    query, keys, *_ = draw(torch.bfloat16, 16, num=30)
    exact = query[0].double() @ keys[0].double().mT / 7
    scores = half._scores(query[0], keys[0].mT, 1 / 7)
    assert scores.dtype == torch.float32
    assert (scores - exact).abs().max() < 1e-4 * exact.abs().max()


@pytest.mark.usefixtures("has_products")
def test_gradients_of_gradients_are_those_of_the_formula():
    tensors = [x.double().requires_grad_() for x in draw(torch.bfloat16, 1, num=6, dim=5)[:3]]

    def penalty(*inputs: Tensor, kernel: str) -> Tensor:
        out = attend(inputs[0], inputs[1:], kernel=kernel)
        (slope,) = torch.autograd.grad(out.square().sum(), inputs[0], create_graph=True)
        return slope.square().sum()

    exact = torch.autograd.grad(penalty(*tensors, kernel="reference"), tensors)
    halves = [x.detach().bfloat16().requires_grad_() for x in tensors]
    actual = torch.autograd.grad(penalty(*halves, kernel="products"), halves)
    assert max(errors(list(actual), list(exact))) < 0.1


@pytest.mark.usefixtures("has_products")
def test_reads_under_vmap_are_accurate():
    query, keys, values, _ = draw(torch.bfloat16, 4, num=20)
    exact = fused(False)(*(x.double() for x in (query, keys, values)))
    mapped = torch.func.vmap(lambda q, k, v: attend(q, (k, v), kernel="products"))(
        query, keys, values
    )
    assert errors([mapped], [exact])[0] < 0.006


def test_weights_have_the_dtype_of_the_queries():
    query, keys, values, _ = draw(torch.bfloat16, 4, num=20)
    weights = attention_weights(query, (keys, values))
    assert weights.dtype == torch.bfloat16
    exact = (query.double() @ keys.double().mT / 48**0.5).softmax(-1)
    assert errors([weights], [exact])[0] < 0.003
