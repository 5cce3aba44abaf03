import dataclasses
import json
from typing import Any

import pytest

from regard.errors import UserError
from regard.train.config import TrainConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, r"steps must be above 0, but is 0\."),
        ({"minutes": -1.5}, r"minutes must be above 0, but is -1\.5\."),
        ({"accumulate": 0}, r"accumulate must be at least 1, but is 0\."),
        ({"patience": -1}, r"patience must be at least 0, but is -1\."),
        ({"lr": float("nan")}, r"lr must be above 0, but is nan\."),
        ({"clip": float("inf")}, r"clip must be at least 0, but is inf\."),
        ({"betas": (0.9, 1.0)}, r"betas must be at least 0 and below 1, but is \(0\.9, 1\.0\)\."),
        ({"label_smoothing": 1.0}, r"label_smoothing must be at least 0 and below 1, but is 1\.0\."),
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
