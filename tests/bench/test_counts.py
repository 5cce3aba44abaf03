"""Rates and counts: times, bytes of parameters, steps, positions; checked against values computed
by hand."""

import pytest
import torch
from torch import Tensor, nn

from regard.attention.masks import Padded
from regard.bench.inference import count_reads
from regard.bench.machine import merge_best, peak_gflops
from regard.bench.timing import Times, percentile, time_calls
from regard.bench.training import count_positions
from regard.data.batches import Batch

CPU = torch.device("cpu")


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
    once = 4 * (2 * 4 + 4 * 6 + 6)
    assert count_reads(model, lambda: model.step(torch.tensor([3, 5]), 0)) == (1, once)


def test_reads_count_neither_views_nor_other_tensors() -> None:
    model, other = Decoder(), torch.randn(50, 50)

    def call() -> None:
        model.layer.weight.t().unsqueeze(0)
        other @ other

    assert count_reads(model, call) == (0, 0)


def test_reads_of_a_repeated_row_are_those_of_its_storage() -> None:
    model = Decoder()
    bias = model.layer.bias
    assert count_reads(model, lambda: bias.expand(1000, 6) + 1) == (0, 4 * 6)


def test_steps_are_counted_and_the_model_is_unchanged() -> None:
    model = Decoder()

    def call() -> None:
        model.step(torch.tensor([1, 2, 3]), 0)
        model.step(torch.tensor([1]), 1)

    assert count_reads(model, call)[0] == 2
    assert "step" not in vars(model)
    assert count_reads(nn.Linear(2, 2), lambda: None) == (0, 0)


def test_rate_is_the_total_amount_by_the_total_time() -> None:
    times = Times(seconds=(1.0, 3.0, 1.0), calls=(0, 1, 0))
    assert times.rate([10, 60]) == pytest.approx((10 + 60 + 10) / 5)
    assert times.to_dict()["median_ms"] == 1000


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1), (10, 1), (50, 5), (90, 9), (95, 10), (100, 10)]
)
def test_percentile_is_a_value_that_so_many_do_not_exceed(percent: int, value: int) -> None:
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == value


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="values must not be empty"):
        percentile([], 50)


def test_calls_are_timed_in_turns_until_enough_were_made() -> None:
    calls: list[str] = []
    times = time_calls(
        [lambda: calls.append("a"), lambda: calls.append("b")], seconds=0.0, device=CPU, least=3
    )
    assert calls == ["a", "b", "a"]
    assert times.calls == (0, 1, 0)


def test_positions_of_a_batch_are_counted_without_and_with_padding() -> None:
    padded = Padded(torch.zeros(2, 5, dtype=torch.int64), torch.tensor([5, 2]))
    assert count_positions(padded) == (7, 10)
    windows = Padded(torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([3, 2]))
    assert count_positions(Batch(None, windows, (0, 1))) == (5, 6)
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
