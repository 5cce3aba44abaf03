"""Input of chain figures: one label per token, and zero weights for later tokens."""

import pytest
import torch

from regard.look.figures.chain import Chain


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.zeros(2, 3), r"= \(2, 2\), got \(2, 3\)"),
        (torch.ones(2, 2), "must be zero for later tokens"),
        (torch.full((2, 2), float("nan")), "must be finite"),
    ],
)
def test_invalid_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        Chain(labels=["a", "b"], weights=weights)
