"""Positional encodings: sinusoidal and learned."""

import math

import pytest
import torch

from regard.attention.biases import Alibi
from regard.layers.positions.base import AlibiPositions, NoPositions
from regard.layers.positions.grid import GridPositions
from regard.layers.positions.learned import Learned
from regard.layers.positions.rotary import Rotary
from regard.layers.positions.sinusoidal import Sinusoidal, sinusoids
from tests.helpers import close


@pytest.mark.parametrize("dim", [1, 6, 7])
def test_sinusoids_are_the_papers(dim):
    table = sinusoids(0, 11, dim)
    for i in range(11):
        for column in range(dim):
            angle = i / 10000 ** (2 * (column // 2) / dim)
            assert math.isclose(
                table[i, column], math.cos(angle) if column % 2 else math.sin(angle), abs_tol=1e-6
            )


@pytest.mark.parametrize("positions", [Sinusoidal(7), Learned(600, 7)])
def test_positions_from_a_start_are_those_of_the_whole(positions):
    items = torch.zeros(2, 500, 7)
    encoded = positions(items)
    close(positions(items[:, :3], 490), encoded[:, 490:493])
    assert (encoded[0, 1:] - encoded[0, :-1]).abs().sum(-1).min() > 0


def test_learned_raises_for_a_position_past_the_last():
    with pytest.raises(ValueError, match="at most 5 positions were learned, got 6"):
        Learned(5, 3)(torch.zeros(1, 2, 3), 4)


@pytest.mark.parametrize("positions", [Sinusoidal(7), Learned(9, 7), GridPositions((2, 4), 7)])
def test_matrix_is_what_is_added(positions):
    close(positions.matrix(5, 3), positions.add(torch.zeros(1, 5, 7), 3)[0])


def test_matrix_of_sinusoids_is_the_lectures():
    """P[i, 2j] = sin(i / 10000^(2j/d)), P[i, 2j+1] = cos(i / 10000^(2j/d)). (lectures, D.1)"""
    matrix = Sinusoidal(6).matrix(4, 2)
    expected = [
        [trig(i / 10000 ** (2 * j / 6)) for j in range(3) for trig in (math.sin, math.cos)]
        for i in range(2, 6)
    ]
    close(matrix, torch.tensor(expected))


@pytest.mark.parametrize("positions", [Sinusoidal(6), Rotary(6)])
def test_computed_matrices_have_the_dtype_of_the_module(positions):
    single, exact = positions.matrix(13), positions.double().matrix(13)
    assert (single.dtype, exact.dtype) == (torch.float32, torch.float64)
    assert torch.equal(exact.float(), single)
    angle = torch.arange(13)[:, None] / 10000 ** (torch.arange(0, 6, 2, dtype=torch.float64) / 6)
    even, odd = exact[:, ::2], exact[:, 1::2]
    sin, cos = (odd, even) if isinstance(positions, Rotary) else (even, odd)
    torch.testing.assert_close(sin, angle.sin(), atol=1e-12, rtol=0)
    torch.testing.assert_close(cos, angle.cos(), atol=1e-12, rtol=0)
    assert torch.equal(positions.bfloat16().matrix(13), single)


def test_sum_of_items_and_sinusoids_is_the_lectures():
    items = torch.randn(2, 4, 5)
    added = Sinusoidal(5).add(items)
    for i in range(4):
        for column in range(5):
            angle = i / 10000 ** (2 * (column // 2) / 5)
            close(
                added[:, i, column],
                items[:, i, column] + (math.cos(angle) if column % 2 else math.sin(angle)),
            )


def test_matrix_of_rotary_turns_each_pair():
    positions = Rotary(6, base=50.0, interleaved=True)
    first_of_pairs = torch.tensor([1.0, 0.0]).repeat(3).expand(5, 6)
    close(positions.matrix(5, 2), positions.rotate(first_of_pairs, 2))  # R(i) (1, 0) = (cos, sin)


def test_picture_has_a_row_for_each_position():
    picture = Sinusoidal(5).picture(4, start=11)
    (panel,) = picture.panels
    assert torch.equal(panel.numbers, Sinusoidal(5).matrix(4, 11))
    assert (picture.names, picture.first) == (("position", "dimension"), 11)
    assert picture.heading == "Sinusoidal(5)"


@pytest.mark.parametrize("positions", [NoPositions(), AlibiPositions(2)])
def test_encodings_without_a_matrix_are_named(positions):
    with pytest.raises(ValueError, match=f"to have a matrix, got {type(positions).__name__}"):
        positions.picture(3)
    assert type(AlibiPositions(2).bias(two_sided=True)) is Alibi


def test_positions_beyond_the_last_are_not_drawn():
    with pytest.raises(ValueError, match=r"positions must be between 0 and 8, got 5 \.\. 9"):
        Learned(9, 7).picture(5, start=5)
    with pytest.raises(ValueError, match="length of a picture must be at least 1, got 0"):
        Sinusoidal(3).picture(0)
