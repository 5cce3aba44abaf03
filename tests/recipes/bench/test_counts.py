"""What is counted while a model runs: operations of products, bytes of weights, steps; by numbers worked by hand."""

import pytest
import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.data.windows import Window
from regard.layers.multihead import MultiHead
from regard.recipes.bench.flops import count_flops
from regard.recipes.bench.machine import better, limit_of
from regard.recipes.bench.reads import WeightReads, bandwidth_share, counted_steps
from regard.recipes.bench.timing import Times, percentile, timed
from regard.recipes.bench.training import filled

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
    reads = 2 * 2 * batch * time * time * dim  # scores, and what is read by them; all heads together
    forward = projections + reads
    assert count_flops(lambda: attention(items, attention.memory(items))) == forward
    assert count_flops(lambda: attention(items, attention.memory(items)).sum().backward()) == 3 * forward


def test_flops_of_a_vector_by_a_matrix_are_counted() -> None:
    matrix, vector = torch.randn(5, 7), torch.randn(7)
    assert count_flops(lambda: torch.mv(matrix, vector)) == 2 * 5 * 7


class Decoder(nn.Module):
    """A table and a layer: what is embedded is read by rows, what multiplies is read whole."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 4)
        self.layer = nn.Linear(4, 6)

    def step(self, tokens: Tensor, state: int) -> tuple[Tensor, int]:
        """A step."""
        return self.layer(self.table(tokens)), state + 1


def test_reads_count_rows_of_a_table_and_the_whole_of_a_layer() -> None:
    model = Decoder()
    with torch.no_grad(), WeightReads(model) as reads:
        model.step(torch.tensor([3, 5]), 0)
    assert reads.bytes == 4 * (2 * 4 + 4 * 6 + 6)


def test_reads_do_not_count_views_nor_what_is_no_weight() -> None:
    model, other = Decoder(), torch.randn(50, 50)
    with torch.no_grad(), WeightReads(model) as reads:
        model.layer.weight.t().unsqueeze(0)
        other @ other
    assert reads.bytes == 0


def test_steps_are_counted_and_the_model_is_as_it_was() -> None:
    model = Decoder()
    with counted_steps(model) as steps:
        model.step(torch.tensor([1, 2, 3]), 0)
        model.step(torch.tensor([1]), 1)
    assert (steps.count, steps.rows) == (2, 4)
    assert "step" not in vars(model)
    with counted_steps(nn.Linear(2, 2)) as none:
        pass
    assert none.count == 0


def test_share_of_the_bandwidth_is_bytes_by_time() -> None:
    # 10 MB of weights, 300 steps in two seconds: 1.5 GB/s of 30.
    assert bandwidth_share(10e6 * 300, 2.0, 30.0) == pytest.approx(5.0)


def test_rate_counts_what_was_done_by_all_the_time() -> None:
    times = Times(seconds=(1.0, 3.0, 1.0), calls=(0, 1, 0))
    assert times.rate([10, 60]) == pytest.approx((10 + 60 + 10) / 5)
    assert times.told()["median_ms"] == 1000


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (10, 1), (50, 5), (90, 9), (95, 10), (100, 10)])
def test_percentile_is_a_value_that_so_many_do_not_exceed(percent: int, value: int) -> None:
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == value


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="must hold one at least"):
        percentile([], 50)


def test_calls_are_timed_in_turns_until_enough_were_made() -> None:
    made: list[str] = []
    times = timed([lambda: made.append("a"), lambda: made.append("b")], seconds=0.0, device=CPU, least=3)
    assert made == ["a", "b", "a"]
    assert times.calls == (0, 1, 0)


def test_places_of_a_batch_that_hold_something_are_counted() -> None:
    padded = Padded(torch.zeros(2, 5, dtype=torch.int64), torch.tensor([5, 2]))
    assert filled(padded) == (7, 10)
    assert filled(Window(torch.tensor([[1, 2, 3], [4, 5, -1]]), (0, 1))) == (5, 6)
    assert filled(torch.zeros(3, 4)) == (0, 0)


def test_limits_are_the_higher_ones_of_two_measurements() -> None:
    once = {"threads": 2, "products_gflops": {"float32": {"torch.mm": 90.0, "oneDNN": 200.0}}, "memory_read_gb_s": 30.0}
    again = {
        "threads": 2,
        "products_gflops": {"float32": {"torch.mm": 99.0, "oneDNN": 150.0}},
        "memory_read_gb_s": 20.0,
    }
    found = better(once, again)
    assert found["products_gflops"]["float32"] == {"torch.mm": 99.0, "oneDNN": 200.0}
    assert (found["memory_read_gb_s"], found["threads"]) == (30.0, 2)
    assert limit_of(found, "float32") == 200.0
