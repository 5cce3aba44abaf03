from pathlib import Path

import pytest
import torch
from torch import nn

from regard.training.average import MovingAverage, average_weights
from regard.training.tensors import write_tensors


def test_average_weights_is_exact_and_keeps_dtypes_and_counters(tmp_path: Path) -> None:
    paths = []
    for number, value in enumerate((1.0, 2.0, 6.0)):
        paths.append(tmp_path / f"{number}.safetensors")
        weight = torch.full((2, 3), value, dtype=torch.bfloat16)
        write_tensors(paths[-1], {"w": weight, "count": torch.tensor(number)})
    mean = average_weights(paths)
    assert torch.equal(mean["w"], torch.full((2, 3), 3.0, dtype=torch.bfloat16))
    assert torch.equal(mean["count"], torch.tensor(2))


def test_moving_average_follows_its_formula() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 4.0)
    average = MovingAverage(model, decay=0.25)
    for step, value in enumerate((8.0, 2.0), start=1):
        nn.init.constant_(model.weight, value)
        average.update(step)
    # After step 1, b = 2/11: 4 b + 8 (1 - b) = 80/11; after step 2, b = 0.25: 80/44 + 1.5.
    assert average.weights()["weight"].item() == pytest.approx(80 / 44 + 1.5)
    assert model.weight.item() == 2.0


def test_moving_average_does_not_average_counters() -> None:
    model = nn.BatchNorm1d(3)
    average = MovingAverage(model, decay=0.9)
    model.num_batches_tracked += 5
    assert average.weights()["num_batches_tracked"] == 5
    assert "num_batches_tracked" not in average.tensors
