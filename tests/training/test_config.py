import dataclasses
import json
from typing import Any

import pytest

from regard.errors import UserError
from regard.training.config import TrainConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be from 1 to 1,000,000,000, got 0"),
        ({"lr": float("nan")}, "lr must be a number, got nan"),
        ({"eps": 1e-308}, "eps must be from 1e-20 to 1, got 1e-308"),  # 0 in float32
        ({"device": "meta"}, "device must be auto, cpu, .*got 'meta'"),
        ({"betas": (0.9, 1.0)}, r"betas must be at least 0 and below 1, got 1\.0"),
        (
            {"schedule": "cosine"},
            r"schedule cosine needs an end of the run: set steps, epochs or minutes\.",
        ),
        ({"warmup": 0.1}, r"warmup 0\.1 needs an end of the run: set steps, epochs or minutes\."),
        ({"patience": 0}, r"training must have a limit: set steps, epochs, minutes or patience\."),
    ],
)
def test_config_refuses_values_with_their_rule(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TrainConfig(**changes)


def test_training_fingerprint_is_json_without_limits() -> None:
    config = TrainConfig(steps=7, betas=(0.8, 0.9))
    fingerprint = config.training_fingerprint()
    assert json.loads(json.dumps(fingerprint)) == fingerprint
    assert fingerprint["betas"] == [0.8, 0.9]
    later = dataclasses.replace(
        config, steps=9, minutes=2.0, patience=3, log_every=5, keep=4, device="cpu"
    )
    assert later.training_fingerprint() == fingerprint
    assert dataclasses.replace(config, lr=0.5).training_fingerprint() != fingerprint
