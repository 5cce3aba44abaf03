"""Position-wise feed-forward network: equality with two 1x1 convolutions."""

import pytest
import torch
from torch import nn

from regard.layers.feedforward import FeedForward
from tests.helpers import close


@pytest.mark.parametrize(
    ("activation", "function"), [("relu", torch.relu), ("gelu", nn.functional.gelu)]
)
def test_feedforward_is_two_1x1_convolutions(activation, function):
    part = FeedForward(5, 11, activation=activation).double()
    first, second = nn.Conv1d(5, 11, 1).double(), nn.Conv1d(11, 5, 1).double()
    with torch.no_grad():
        for convolution, layer in ((first, part.expand), (second, part.contract)):
            convolution.weight.copy_(layer.weight[..., None])
            convolution.bias.copy_(layer.bias)
    items = torch.randn(2, 7, 5).double()
    close(part(items), second(function(first(items.mT))).mT)


def test_feedforward_is_the_same_on_flattened_positions():
    part, items = FeedForward(5, 11), torch.randn(2, 7, 5)
    close(part(items), part(items.reshape(14, 5)).reshape(2, 7, 5))


def test_feedforward_rejects_an_unknown_activation():
    with pytest.raises(
        ValueError,
        match="activation must be one of relu, gelu, gelu-tanh, silu, or a function, got 'tanh'",
    ):
        FeedForward(5, 11, activation="tanh")
