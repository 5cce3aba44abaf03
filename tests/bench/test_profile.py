"""FLOPs checked by hand, and shares of operators that add up to 100 %."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from regard.bench.profile import PYTHON, count_flops, profile_call
from regard.compat.torch import onednn_operators
from regard.layers.dropout import Dropout
from regard.layers.multihead import MultiHead


def test_flops_of_a_linear_are_two_a_weight_and_item_and_twice_that_backward() -> None:
    linear, items = nn.Linear(7, 11), torch.randn(3, 5, 7)
    forward = 2 * 3 * 5 * 7 * 11
    assert count_flops(lambda: linear(items)) == forward
    # The items need no gradient, so that there is one product backward; else there are two.
    assert count_flops(lambda: linear(items).sum().backward()) == 2 * forward
    leaf = items.clone().requires_grad_()
    assert count_flops(lambda: linear(leaf).sum().backward()) == 3 * forward


@pytest.mark.skipif(onednn_operators() is None, reason="torch without oneDNN")
@pytest.mark.parametrize("is_gradient", [False, True])
def test_flops_of_a_product_by_onednn_are_those_of_a_linear(is_gradient: bool) -> None:
    linear, items = nn.Linear(7, 11), torch.randn(3, 5, 7)
    operators = onednn_operators()
    assert operators is not None

    def multiply() -> None:
        operators[0](items, linear.weight, linear.bias, "none", [], "")

    def differentiate() -> None:
        gradient = torch.randn(15, 11).to_mkldnn()
        operators[1](gradient, items.view(15, 7).to_mkldnn(), linear.weight, True)

    call: Callable[[], None] = differentiate if is_gradient else multiply
    with torch.no_grad():
        assert count_flops(call) == 2 * 3 * 5 * 7 * 11


@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
def test_flops_of_attention_are_those_of_its_products(kernel: str) -> None:
    batch, time, dim = 2, 5, 12
    attention = MultiHead(dim, num_heads=3, kernel=kernel)
    items = torch.randn(batch, time, dim, requires_grad=True)
    projections = 4 * 2 * batch * time * dim * dim
    reads = 2 * 2 * batch * time * time * dim  # scores and weighted values; all heads together
    forward = projections + reads
    memory = attention.memory
    assert count_flops(lambda: attention(items, memory(items))) == forward
    assert count_flops(lambda: attention(items, memory(items)).sum().backward()) == 3 * forward


def test_shares_add_up_and_no_time_is_counted_twice() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), Dropout(0.5), nn.LayerNorm(8)), torch.randn(64, 8)
    rows = profile_call(lambda: model(x).sum().backward(), torch.device("cpu"))
    names = [row["operator"] for row in rows]
    assert len(names) == len(set(names))
    assert {"aten::addmm", "aten::native_layer_norm"} <= set(names)
    assert names[-1] == PYTHON
    assert sum(row["percent"] for row in rows) == pytest.approx(100)
    times = [row["ms"] for row in rows[:-1]]
    assert times == sorted(times, reverse=True)
    assert rows[names.index("aten::addmm")]["calls"] == 1
