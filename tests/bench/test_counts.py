"""Counts while a model runs: FLOPs, bytes of parameters, steps; checked against values computed by hand."""

import pytest
import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.bench.flops import count_flops
from regard.bench.machine import merge_best, peak_gflops
from regard.bench.timing import Times, percentile, time_calls
from regard.bench.training import count_positions
from regard.bench.weight_reads import WeightReads, bandwidth_share, count_steps
from regard.data.text.windows import WindowBatch
from regard.layers.multihead import MultiHead

CPU = torch.device("cpu")


def test_flops_of_a_linear_are_two_a_weight_and_item_and_twice_that_backward() -> None:
    linear, items = nn.Linear(7, 11), torch.randn(3, 5, 7)
    forward = 2 * 3 * 5 * 7 * 11
    assert count_flops(lambda: linear(items)) == forward
    # The items need no gradient, so that there is one product backward; else there are two.
    assert count_flops(lambda: linear(items).sum().backward()) == 2 * forward
    assert count_flops(lambda: linear(items.clone().requires_grad_()).sum().backward()) == 3 * forward


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_flops_of_a_product_by_onednn_are_those_of_a_linear() -> None:
    linear, items = nn.Linear(7, 11), torch.randn(3, 5, 7)
    with torch.no_grad():
        by_onednn = count_flops(
            lambda: torch.ops.mkldnn._linear_pointwise(items, linear.weight, linear.bias, "none", [], "")
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
    assert count_flops(lambda: attention(items, attention.memory(items))) == forward
    assert count_flops(lambda: attention(items, attention.memory(items)).sum().backward()) == 3 * forward


def test_flops_of_a_vector_by_a_matrix_are_counted() -> None:
    matrix, vector = torch.randn(5, 7), torch.randn(7)
    assert count_flops(lambda: torch.mv(matrix, vector)) == 2 * 5 * 7


class Decoder(nn.Module):
    """Embedding table, which is read by rows, and linear layer, which is read as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 4)
        self.layer = nn.Linear(4, 6)

    def step(self, tokens: Tensor, state: int) -> tuple[Tensor, int]:
        """Return logits and the next state."""
        return self.layer(self.table(tokens)), state + 1


def test_reads_count_rows_of_a_table_and_the_whole_of_a_layer() -> None:
    model = Decoder()
    with torch.no_grad(), WeightReads(model) as reads:
        model.step(torch.tensor([3, 5]), 0)
    assert reads.bytes == 4 * (2 * 4 + 4 * 6 + 6)


def test_reads_count_neither_views_nor_other_tensors() -> None:
    model, other = Decoder(), torch.randn(50, 50)
    with torch.no_grad(), WeightReads(model) as reads:
        model.layer.weight.t().unsqueeze(0)
        other @ other
    assert reads.bytes == 0


def test_steps_are_counted_and_the_model_is_unchanged() -> None:
    model = Decoder()
    with count_steps(model) as steps:
        model.step(torch.tensor([1, 2, 3]), 0)
        model.step(torch.tensor([1]), 1)
    assert (steps.count, steps.rows) == (2, 4)
    assert "step" not in vars(model)
    with count_steps(nn.Linear(2, 2)) as none:
        pass
    assert none.count == 0


def test_share_of_the_bandwidth_is_bytes_by_time() -> None:
    # 10 MB of weights, 300 steps in two seconds: 1.5 GB/s of 30.
    assert bandwidth_share(10e6 * 300, 2.0, 30.0) == pytest.approx(5.0)


def test_rate_is_the_total_amount_by_the_total_time() -> None:
    times = Times(seconds=(1.0, 3.0, 1.0), calls=(0, 1, 0))
    assert times.rate([10, 60]) == pytest.approx((10 + 60 + 10) / 5)
    assert times.to_dict()["median_ms"] == 1000


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (10, 1), (50, 5), (90, 9), (95, 10), (100, 10)])
def test_percentile_is_a_value_that_so_many_do_not_exceed(percent: int, value: int) -> None:
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == value


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="values must not be empty"):
        percentile([], 50)


def test_calls_are_timed_in_turns_until_enough_were_made() -> None:
    calls: list[str] = []
    times = time_calls([lambda: calls.append("a"), lambda: calls.append("b")], seconds=0.0, device=CPU, least=3)
    assert calls == ["a", "b", "a"]
    assert times.calls == (0, 1, 0)


def test_positions_of_a_batch_are_counted_without_and_with_padding() -> None:
    padded = Padded(torch.zeros(2, 5, dtype=torch.int64), torch.tensor([5, 2]))
    assert count_positions(padded) == (7, 10)
    assert count_positions(WindowBatch(torch.tensor([[1, 2, 3], [4, 5, -1]]), (0, 1))) == (5, 6)
    assert count_positions(torch.zeros(3, 4)) == (0, 0)


def test_limits_are_the_higher_ones_of_two_measurements() -> None:
    first = {
        "threads": 2,
        "products_gflops": {"float32": {"torch.mm": 90.0, "oneDNN": 200.0}},
        "memory_read_gb_s": 30.0,
    }
    second = {
        "threads": 2,
        "products_gflops": {"float32": {"torch.mm": 99.0, "oneDNN": 150.0}},
        "memory_read_gb_s": 20.0,
    }
    merged = merge_best(first, second)
    assert merged["products_gflops"]["float32"] == {"torch.mm": 99.0, "oneDNN": 200.0}
    assert (merged["memory_read_gb_s"], merged["threads"]) == (30.0, 2)
    assert peak_gflops(merged, "float32") == 200.0
