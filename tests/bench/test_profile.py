"""Table of torch.profiler: groups by name, shares that add up to 100 %, FLOPs checked by hand."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from regard.bench.profile import OTHER, PYTHON, count_flops, group_of, mark, profile_calls, tabulate
from regard.layers.dropout import Dropout
from regard.layers.multihead import MultiHead

CPU = torch.device("cpu")


def total(call: Callable[[], object]) -> int:
    """Return the FLOPs of a call."""
    return count_flops(call).total()


def test_flops_of_a_linear_are_two_a_weight_and_item_and_twice_that_backward() -> None:
    linear, items = nn.Linear(7, 11), torch.randn(3, 5, 7)
    forward = 2 * 3 * 5 * 7 * 11
    assert total(lambda: linear(items)) == forward
    # The items need no gradient, so that there is one product backward; else there are two.
    assert total(lambda: linear(items).sum().backward()) == 2 * forward
    assert total(lambda: linear(items.clone().requires_grad_()).sum().backward()) == 3 * forward


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_flops_of_a_product_by_onednn_are_those_of_a_linear() -> None:
    linear, items = nn.Linear(7, 11), torch.randn(3, 5, 7)
    with torch.no_grad():
        by_onednn = total(
            lambda: torch.ops.mkldnn._linear_pointwise(
                items, linear.weight, linear.bias, "none", [], ""
            )
        )
    assert by_onednn == 2 * 3 * 5 * 7 * 11


@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
def test_flops_of_attention_are_those_of_its_products(kernel: str) -> None:
    batch, time, dim = 2, 5, 12
    attention = MultiHead(dim, num_heads=3, kernel=kernel)
    items = torch.randn(batch, time, dim, requires_grad=True)
    projections = 4 * 2 * batch * time * dim * dim
    reads = 2 * 2 * batch * time * time * dim  # scores and weighted values; all heads together
    forward = projections + reads
    assert total(lambda: attention(items, attention.memory(items))) == forward
    assert total(lambda: attention(items, attention.memory(items)).sum().backward()) == 3 * forward


class Block(nn.Module):
    """Transformer block."""

    def __init__(self, dim: int, hidden: int, num_heads: int):
        super().__init__()
        self.attention = MultiHead(dim, num_heads=num_heads, kernel="sdpa")
        self.feedforward = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, items: Tensor) -> Tensor:
        """Apply attention, then the feed-forward layer."""
        items = items + self.attention(items, self.attention.memory(items))
        return items + self.feedforward(items)


def test_flops_of_a_transformer_are_those_of_its_linear_layers_and_its_attention() -> None:
    batch, time, dim, hidden = 2, 5, 12, 20
    block, items = (
        Block(dim, hidden, num_heads=3),
        torch.randn(batch, time, dim, requires_grad=True),
    )
    flops = count_flops(lambda: block(items).sum().backward())
    groups = {
        row["group"]: row["flop"] for row in tabulate(dict.fromkeys(flops, (1, 1.0)), 10.0, flops)
    }
    linear = 2 * batch * time * (4 * dim * dim + 2 * dim * hidden)
    attention = 2 * 2 * batch * time * time * dim
    assert groups == {"matrix products": 3 * linear, "attention": 3 * attention, PYTHON: 0}


def test_flops_of_a_vector_by_a_matrix_are_counted() -> None:
    matrix, vector = torch.randn(5, 7), torch.randn(7)
    assert total(lambda: torch.mv(matrix, vector)) == 2 * 5 * 7


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("aten::addmm", "matrix products"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "matrix products"),
        ("mkldnn::_linear_pointwise", "matrix products"),
        ("aten::mkldnn_convolution", "matrix products"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("ScaledDotProductFlashAttentionForCpuBackward0", "attention"),
        ("_SoftmaxBackward", "attention"),
        ("_DirectRead", "attention"),
        ("aten::_log_softmax", "loss"),
        ("LogSoftmaxBackward0", "loss"),
        ("_ChunkedLoss", "loss"),
        ("aten::native_layer_norm", "normalization"),
        ("NativeLayerNormBackward0", "normalization"),
        ("_AddDropoutNorm", "normalization"),
        ("aten::linalg_vector_norm", "optimizer"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("_SixteenBitDropout", "dropout"),
        ("aten::embedding_dense_backward", "embedding"),
        ("aten::gelu", "activations"),
        ("_DecodeBackward", "recurrent cells"),
        ("aten::copy_", "copies and memory"),
        ("TBackward0", "copies and memory"),
        ("aten::mul", OTHER),
        ("mine::renewed", OTHER),
        ("aten::new_zeros", "copies and memory"),
        ("regard: decoding engine", "decoding engine"),
        ("ProfilerStep#1", PYTHON),
    ],
)
def test_group_of_an_operator_follows_from_its_name(name: str, group: str) -> None:
    assert group_of(name) == group


def test_shares_add_up_and_python_is_the_rest() -> None:
    times = {
        "aten::linear": (2, 1.0),
        "aten::addmm": (3, 2.0),
        "mine::unknown": (1, 3.0),
        "ProfilerStep#1": (1, 9.0),
        "aten::mm": (1, 0.0),
    }
    rows = {row["group"]: row for row in tabulate(times, 8.0, {"aten::addmm": 40, "aten::bmm": 2})}
    products, other, python = (rows.pop(name) for name in ("matrix products", OTHER, PYTHON))
    assert not rows
    assert [row["seconds"] for row in (products, other, python)] == [3.0, 3.0, 2.0]
    assert [row["percent"] for row in (products, other, python)] == [37.5, 37.5, 25.0]
    assert [row["flop"] for row in (products, other, python)] == [42, 0, 0]
    assert products["operators"] == [
        {"name": "aten::addmm", "calls": 3, "seconds": 2.0},
        {"name": "aten::linear", "calls": 2, "seconds": 1.0},
    ]


def test_shares_are_never_negative_where_clocks_differ() -> None:
    rows = tabulate({"aten::mm": (1, 2.0)}, 1.9, {})
    assert [(row["group"], row["percent"]) for row in rows] == [
        ("matrix products", 100.0),
        (PYTHON, 0.0),
    ]


def test_nothing_has_a_share_of_zero() -> None:
    assert [row["percent"] for row in tabulate({}, 0.0, {})] == [0.0]


def test_profile_counts_no_time_twice() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), Dropout(0.5), nn.LayerNorm(8)), torch.randn(64, 8)

    def step() -> None:
        with mark("batch construction"):
            sum(range(10_000))
        model(x).sum().backward()

    result = profile_calls([step, step], CPU)
    rows = {row["group"]: row for row in result["profile"]}
    assert len(rows) == len(result["profile"])
    assert {"matrix products", "dropout", "normalization", "batch construction", PYTHON} <= set(
        rows
    )
    assert sum(row["percent"] for row in rows.values()) == pytest.approx(100)
    assert sum(row["seconds"] for row in rows.values()) == pytest.approx(
        2e-3 * result["profiled_ms"]
    )
    # Two calls were profiled, not the one that warmed up.
    assert rows["batch construction"]["operators"][0]["calls"] == 2
