import dataclasses
import json
from typing import Any

import pytest

from regard.errors import UserError
from regard.train.config import TrainConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be from 1 to 1,000,000,000, but is 0"),
        ({"minutes": -1.5}, r"minutes must be from 1e-06 to 10,000,000, but is -1\.5"),
        ({"accumulate": 0}, "accumulate must be from 1 to 100,000, but is 0"),
        ({"patience": -1}, "patience must be from 0 to 1,000,000,000, but is -1"),
        ({"lr": float("nan")}, "lr must be from 1e-12 to 100, but is nan"),
        ({"clip": float("inf")}, "clip must be from 0 to 1,000,000,000, but is inf"),
        ({"eps": 1e-308}, r"eps must be from 1e-20 to 1, but is 1e-308"),  # 0 in float32, and 0 / 0 is NaN
        ({"device": "meta"}, "device must be auto, cpu, .*but is 'meta'"),
        ({"betas": (0.9, 1.0)}, r"betas must be at least 0 and below 1, but is \(0\.9, 1\.0\)"),
        ({"label_smoothing": 1.0}, r"label_smoothing must be at least 0 and below 1, but is 1\.0"),
        ({"schedule": "cosine"}, r"schedule cosine needs an end to fall to: steps, epochs or minutes\."),
        ({"patience": 0}, r"nothing ends the training: give steps, epochs, minutes or patience\."),
    ],
)
def test_config_refuses_values_with_their_rule(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TrainConfig(**changes)


def test_decisive_settings_are_json_and_leave_out_limits() -> None:
    config = TrainConfig(steps=7, betas=(0.8, 0.9))
    decisive = config.decisive()
    assert json.loads(json.dumps(decisive)) == decisive
    assert decisive["betas"] == [0.8, 0.9]
    later = dataclasses.replace(config, steps=9, minutes=2.0, patience=3, log_every=5, keep=4, device="cpu")
    assert later.decisive() == decisive
    assert dataclasses.replace(config, lr=0.5).decisive() != decisive
