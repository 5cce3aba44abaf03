import math

import pytest
import torch

from regard.decode.config import DecodeConfig, DrawingConfig, SampleConfig
from regard.decode.sample import filter_logits


@pytest.mark.parametrize(
    ("source", "most"), [(1, 6), (2, 8), (7, 15), (13, 24), (14, 25), (15, 25), (100_000, 25)]
)
def test_limit_grows_with_the_source_up_to_the_cap(source: int, most: int) -> None:
    assert DecodeConfig(max_ratio=1.5, max_extra=5, max_length=25).limit(source) == most


def test_limit_is_at_least_one_and_above_the_minimum_length() -> None:
    assert DecodeConfig(max_ratio=1.0, max_extra=0, min_length=9).limit(7) == 10
    assert DecodeConfig(max_ratio=0.0, max_extra=0).limit(7) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beam": 0}, "beam must be from 1 to 1,000, got 0"),
        ({"beam": 2, "n_best": 3}, r"n_best must be at most beam \(2\), got 3"),
        ({"length_penalty": math.nan}, "length_penalty must be a number, got nan"),
        ({"max_length": 5, "min_length": 5}, r"min_length must be below max_length \(5\), got 5"),
        ({"max_ratio": math.inf}, "max_ratio must be from 0 to 1,000, got inf"),
    ],
)
def test_config_refuses(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecodeConfig(**change)


@pytest.mark.parametrize("config", [SampleConfig, DrawingConfig])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 1e-308}, "temperature must be 0 or at least 0.001, got 1e-308"),
        ({"temperature": 1001.0}, "temperature must be from 0 to 1,000, got 1001.0"),
        ({"top_p": 1e-300}, "top_p must be from 1e-06 to 1, got 1e-300"),
        ({"seed": 2**32}, "seed must be from 0 to 4,294,967,295, got 4294967296"),
    ],
)
def test_sampling_config_refuses(config: type, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**change)


@pytest.mark.parametrize("temperature", [0.0, 0.001, 1000.0])
@pytest.mark.parametrize("top_p", [1e-6, 1.0])
def test_filtered_probabilities_sum_to_one_at_the_ends_of_the_ranges(
    temperature: float, top_p: float
) -> None:
    logits = torch.tensor([[3e4, -3e4, 0.0, -float("inf")], [1e-3, 0.0, 0.0, 0.0]])
    probs = filter_logits(logits, SampleConfig(temperature=temperature, top_p=top_p, top_k=3))
    assert torch.allclose(probs.sum(-1), torch.ones(2))
    assert bool((probs[:, 0] > 0).all())
