"""Positional encodings: sinusoidal and learned."""

import math

import pytest
import torch

from regard.layers.positions.learned import Learned
from regard.layers.positions.sinusoidal import Sinusoidal, sinusoids
from tests.helpers import close


@pytest.mark.parametrize("dim", [1, 6, 7])
def test_sinusoids_are_the_papers(dim):
    table = sinusoids(0, 11, dim)
    for i in range(11):
        for column in range(dim):
            angle = i / 10000 ** (2 * (column // 2) / dim)
            assert math.isclose(table[i, column], math.cos(angle) if column % 2 else math.sin(angle), abs_tol=1e-6)


@pytest.mark.parametrize("positions", [Sinusoidal(7), Learned(600, 7)])
def test_positions_from_a_start_are_those_of_the_whole(positions):
    items = torch.zeros(2, 500, 7)
    encoded = positions(items)
    close(positions(items[:, :3], 490), encoded[:, 490:493])
    assert (encoded[0, 1:] - encoded[0, :-1]).abs().sum(-1).min() > 0


def test_learned_raises_for_a_position_past_the_last():
    with pytest.raises(ValueError, match="position must be at most 5, the number of learned positions, got 6"):
        Learned(5, 3)(torch.zeros(1, 2, 3), 4)
