"""Positions figures: the matrices of a model's positional encodings, and requests without any."""

import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from regard.errors import UserError
from regard.layers.positions.config import (
    AlibiConfig,
    LearnedConfig,
    NoPositionsConfig,
    RotaryConfig,
    SinusoidalConfig,
)
from regard.look.figures.matrix import reduce_cells
from regard.look.figures.positions import plot_positions
from regard.models.cores.config import TransformerConfig
from regard.models.cores.transformer import Transformer
from tests.look.pictures import check_picture


def core_of(positions) -> nn.Module:
    sizes = {"width": 6, "heads": 3, "head_dim": 4, "layers": 1, "feedforward": 5}
    return Transformer(TransformerConfig(**sizes, positions=positions))


def images_of(figure: Figure) -> list[np.ndarray]:
    return [image.get_array().filled(np.nan) for axes in figure.axes for image in axes.get_images()]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_sinusoids_are_drawn_as_the_lectures_write_them(suffix, figures, tmp_path):
    """P[i, 2j] = sin(i / 10000^(2j/d)), P[i, 2j+1] = cos(i / 10000^(2j/d)). (lectures, D.1)"""
    plot_positions(core_of(SinusoidalConfig()), tmp_path / f"p{suffix}")
    check_picture(tmp_path / f"p{suffix}")
    (drawn,) = images_of(figures[0])
    assert drawn.shape == (100, 6)
    for i in (0, 1, 7, 99):
        for j in range(3):
            angle = i / 10000 ** (2 * j / 6)
            assert drawn[i, 2 * j] == pytest.approx(math.sin(angle), abs=1e-5)
            assert drawn[i, 2 * j + 1] == pytest.approx(math.cos(angle), abs=1e-5)


def test_learned_rotary_and_alibi_are_drawn(figures, tmp_path):
    learned = core_of(LearnedConfig(max_length=7))
    plot_positions(learned, tmp_path / "learned.svg")
    (drawn,) = images_of(figures[-1])
    assert "learned" in [text.get_text() for text in figures[-1].texts]
    (axes,) = figures[-1].axes
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("position", "dimension")
    assert np.array_equal(drawn, learned.positions.weight.detach().numpy())
    plot_positions(core_of(RotaryConfig()), tmp_path / "rotary.svg")
    (drawn,) = images_of(figures[-1])
    angles = np.arange(100)[:, None] * 10000.0 ** (-np.arange(0, 4, 2) / 4)
    assert drawn[:, 0::2] == pytest.approx(np.cos(angles), abs=1e-6)
    assert drawn[:, 1::2] == pytest.approx(np.sin(angles), abs=1e-6)
    plot_positions(core_of(AlibiConfig()), tmp_path / "alibi.svg")
    heads = images_of(figures[-1])
    assert len(heads) % 3 == 0  # a bias for the encoder, one for the decoder
    distance = np.abs(np.arange(100)[:, None] - np.arange(100))
    titles = [text.get_text() for text in figures[-1].texts]
    assert {"alibi, encoder, head 1", "alibi, decoder, head 3"} <= set(titles)
    assert {axes.get_xlabel() for axes in figures[-1].axes} == {"key"}
    for head, slope in zip(heads[:3], (2**-4, 2**-8, 2**-2), strict=True):  # press2022, for 3 heads
        assert head == pytest.approx(-slope * distance)


def test_a_model_without_positions_is_refused(tmp_path):
    with pytest.raises(
        UserError, match="requires a positional encoding, which this Transformer does not have"
    ):
        plot_positions(core_of(NoPositionsConfig()), tmp_path / "p.png")
    assert list(tmp_path.iterdir()) == []


def test_large_matrices_are_reduced_to_the_largest_of_a_block():
    numbers = torch.randn(401, 3).numpy()
    numbers[4, 1] = -np.inf
    numbers[3:6, 2] = -np.inf
    cells, rows, columns = reduce_cells(numbers)
    assert (rows, columns, cells.shape) == (3, 1, (134, 3))
    for i in (0, 1, 133):
        block = numbers[3 * i : 3 * i + 3]
        for j in range(3):
            finite = block[:, j][np.isfinite(block[:, j])]
            expected = finite[np.abs(finite).argmax()] if len(finite) else np.nan
            assert cells[i, j] == pytest.approx(expected, nan_ok=True)
