import math

import pytest

from regard.decode.config import DecodeConfig


@pytest.mark.parametrize(("source", "most"), [(1, 6), (2, 8), (7, 15), (13, 24), (14, 25), (15, 25), (100_000, 25)])
def test_limit_grows_with_the_source_up_to_the_cap(source: int, most: int) -> None:
    assert DecodeConfig(max_ratio=1.5, max_extra=5, max_length=25).limit(source) == most


def test_limit_is_at_least_one() -> None:
    assert DecodeConfig(max_ratio=0.0, max_extra=0).limit(7) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beam": 0}, "beam must be from 1 to 1,000, but is 0"),
        ({"n_best": 0}, "n_best must be from 1 to 1,000, but is 0"),
        ({"beam": 2, "n_best": 3}, r"n_best must be at most beam \(2\), got 3"),
        ({"max_length": 0}, "max_length must be from 1 to 1,000,000, but is 0"),
        ({"batch_tokens": -1}, "batch_tokens must be from 1 to 10,000,000, but is -1"),
        ({"beam": 100_000}, "beam must be from 1 to 1,000, but is 100000"),
        ({"max_ratio": 1e308}, r"max_ratio must be from 0 to 1,000, but is 1e\+308"),
        ({"length_penalty": -0.1}, "length_penalty must be from 0 to 5, but is -0.1"),
        ({"length_penalty": math.nan}, "length_penalty must be from 0 to 5, but is nan"),
        ({"max_ratio": -1.0}, "max_ratio must be from 0 to 1,000, but is -1.0"),
        ({"max_ratio": math.inf}, "max_ratio must be from 0 to 1,000, but is inf"),
        ({"max_extra": -1}, "max_extra must be from 0 to 1,000,000, but is -1"),
    ],
)
def test_config_refuses(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecodeConfig(**change)
