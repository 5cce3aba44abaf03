"""Choices in engines: a softmax with any beta is computed, other choices are refused."""

import dataclasses

import pytest
import torch

from regard.engines.registry import unsupported_reason
from regard.layers.positions.config import AlibiConfig
from tests.engines.small import SMALL, check, encoder_decoder, language_model


@pytest.mark.parametrize("make", [encoder_decoder, language_model])
@pytest.mark.parametrize(
    "options", [{"beta": 3.0}, {"beta": "learned"}, {"beta": "learned", "bias": False}]
)
def test_beta_gives_the_outputs_of_torch(options, make) -> None:
    model = make(dataclasses.replace(SMALL, **options))
    if options["beta"] == "learned":  # heads differ
        for key, weight in model.named_parameters():
            if key.endswith("log_beta"):
                weight.data.copy_(torch.tensor([1.2, -0.9]).view(2, 1, 1))
    assert check(model) is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"choice": "hard"}, "read.choice is a Hard, which only torch runs"),
        ({"choice": "sparse"}, "read.choice is a Sparse, which only torch runs"),
        ({"choice": "topk", "top_k": 2}, "read.choice is a TopK, which only torch runs"),
        (
            {"beta": 2.0, "positions": AlibiConfig()},
            "a beta, by which its positional bias is multiplied",
        ),
        (
            {"beta": "learned", "positions": AlibiConfig()},
            "a beta, by which its positional bias is multiplied",
        ),
    ],
)
def test_other_choices_are_refused(options, reason) -> None:
    model = language_model(dataclasses.replace(SMALL, **options))
    assert reason in str(unsupported_reason("compiled", model))
