"""Weight times gradient equals autograd through the formula."""

import pytest
import torch

from regard.attention.kernels import reference
from regard.attention.masks import causal
from regard.layers.multihead import MultiHead
from regard.layers.read import Read
from regard.look.record import record
from tests.look.toys import BOS, CORES, SOURCES, capture_sources, model_of, source_of


class Heads(torch.nn.Module):
    def __init__(self, *, key_heads: int | None = None, kernel: str = "auto"):
        super().__init__()
        self.attention = MultiHead(8, num_heads=4, key_heads=key_heads, kernel=kernel)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.attention(items, self.attention.memory(items), mask=causal()).square().sum()


def by_formula(module: Heads, items: torch.Tensor) -> torch.Tensor:
    """Return weight times gradient (batch, head, query, key) of the read, weights as leaves."""
    leaves = {}

    def stand_in(read: Read, args: tuple, kwargs: dict, output: torch.Tensor) -> torch.Tensor:
        inputs = read.prepare_inputs(*args, **kwargs).repeat_heads()
        leaves["weights"] = reference.weights(inputs).detach().requires_grad_()
        return leaves["weights"] @ inputs.values

    handle = module.attention.read.register_forward_hook(stand_in, with_kwargs=True)
    module(items).backward()
    handle.remove()
    return (leaves["weights"] * leaves["weights"].grad).detach()


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "auto"])
@pytest.mark.parametrize("key_heads", [None, 2, 1])
def test_product_equals_autograd(kernel, key_heads):
    torch.manual_seed(0)
    module, items = Heads(key_heads=key_heads, kernel=kernel), torch.randn(3, 5, 8)
    with record(module, gradients=True) as capture:
        capture.differentiate(module(items))
    expected = by_formula(module, items)
    for row, sample_maps in enumerate(capture):
        weights, product = sample_maps.maps
        assert (weights.measure, product.measure) == ("weight", "weight x gradient")
        torch.testing.assert_close(product.weights, expected[row], atol=1e-5, rtol=1e-4)


def test_product_equals_a_finite_difference():
    """Compare with the finite difference of one encoder weight of a complete model."""
    model = model_of(CORES["transformer"])
    source, target = source_of(SOURCES[0]), source_of([BOS, 4, 5])

    def number() -> torch.Tensor:
        return model(source, target).log_softmax(-1)[0, 1, 5]

    with record(model, gradients=True) as capture:
        capture.differentiate(number())
    product = (
        capture[0].find("encoder self", layer=1, measure="weight x gradient")[0].weights[1, 2, 3]
    )
    read, size = model.core.encoder[0].attention.read, 1e-2

    def scaled(factor: float) -> float:
        def change(_read: Read, args: tuple, kwargs: dict, output: torch.Tensor) -> torch.Tensor:
            inputs = read.prepare_inputs(*args, **kwargs)
            weights = reference.weights(inputs).clone()
            weights[0, 1, 2, 3] *= factor
            return weights @ inputs.values

        handle = read.register_forward_hook(change, with_kwargs=True)
        with torch.no_grad():
            result = float(number())
        handle.remove()
        return result

    slope = (scaled(1 + size) - scaled(1 - size)) / (2 * size)
    assert float(product) == pytest.approx(slope, abs=2e-4)


def test_invalid_scalars_are_named():
    model = model_of(CORES["transformer"])
    with pytest.raises(ValueError, match=r"use record\(\.\.\., gradients=True\)"):
        capture_sources(model, SOURCES[:1]).differentiate(torch.zeros(()))
    with record(model, gradients=True) as capture, torch.no_grad():
        model(source_of([4, 3]), source_of([BOS, 4]))
    with pytest.raises(ValueError, match="there is no graph"):
        capture.differentiate(torch.zeros(()))
    module = Heads()
    with record(module, gradients=True) as capture:
        module(torch.randn(1, 3, 8))
    with pytest.raises(ValueError, match="does not depend on any read"):
        capture.differentiate(torch.ones((), requires_grad=True) * 2)
    with pytest.raises(RuntimeError, match="only for scalar outputs"):
        capture.differentiate(torch.ones(3, requires_grad=True) * 2)


def test_gradients_of_parameters_are_not_set():
    module = Heads()
    with record(module, gradients=True) as capture:
        capture.differentiate(module(torch.randn(1, 3, 8)))
    assert all(weight.grad is None for weight in module.parameters())
