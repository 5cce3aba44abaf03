"""Alignment figures, and what all figures have in common: formats, fonts, style, files."""

from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.image import imread

from regard.look.figures.alignment import plot_alignment
from regard.look.figures.canvas import weight_colors
from regard.look.figures.request import average
from regard.look.output import SUFFIXES
from tests.helpers import close
from tests.look.pictures import check_picture, draw, texts_of

TITLE = "3 \u043c\u0430\u0440\u0442 = 2019"
SOURCE = ["3", " ", "\u043c\u0430\u0440\u0442", "\u4e09\u6708", "$x_1$", "<b>&", "</s>"]
TARGET = ["\u0645\u0627\u0631\u0633", "2019", "\u0301"]


def plot(path: Path, *panels: torch.Tensor, **options) -> Path:
    """Plot panels, by default one of random weights."""
    weights = panels or (torch.randn(len(TARGET), len(SOURCE)).softmax(-1),)
    shown = [(f"head {number}", one) for number, one in enumerate(weights, 1)]
    labels = {"keys": SOURCE, "queries": TARGET, "title": TITLE, "overwrite": False}
    return draw(path, plot_alignment, shown, **labels | options)


def test_svg_contains_every_label_as_text(tmp_path):
    weights = torch.randn(3, len(TARGET), len(SOURCE)).softmax(-1)
    labels = texts_of(plot(tmp_path / "figure.svg", *weights))
    for label in [*SOURCE, *TARGET]:
        shown = label.replace(" ", "\u2423").replace("\u0301", "\u25cc\u0301")
        assert labels.count(shown) == 3, label
    for label in [TITLE, "weight", "head 1", "head 2", "head 3"]:
        assert labels.count(label) == 1, label


@pytest.mark.parametrize(("masked_heads", "gray"), [([], 0), ([1], 1), ([0, 1], 3)])
def test_masked_pairs_are_gray_in_a_head_and_in_the_mean_if_all_heads_mask_them(
    tmp_path, figures, masked_heads, gray
):
    weights = torch.randn(2, len(TARGET), len(SOURCE)).softmax(-1)
    weights[..., 2] = 0.0
    weights[masked_heads, :, 2] = -0.0
    close(average(weights), weights.mean(0))
    plot(tmp_path / "figure.svg", average(weights), *weights)
    # One panel for the mean, one for each head; the column has a cell in each row.
    cells = [axes.images[0].get_array() for axes in figures[0].axes[:3]]
    assert sum(np.ma.getmaskarray(one)[:, 2].sum() for one in cells) == gray * len(TARGET)
    assert sum(np.ma.getmaskarray(one).sum() for one in cells) == gray * len(TARGET)


def test_cells_have_the_colors_of_their_weights(tmp_path, figures):
    weights = torch.tensor([[0.0, 1.0, 0.25], [0.5, 0.0, 0.75]])
    plot(tmp_path / "figure.svg", weights, keys=list("abc"), queries=list("xy"))
    (image,) = figures[0].axes[0].images
    assert image.get_array().tolist() == weights.tolist()
    shades = image.to_rgba(image.get_array())
    np.testing.assert_allclose(shades, weight_colors()(weights.numpy()), atol=1e-6)


def test_colors_go_from_white_to_dark_in_equal_steps_of_lightness():
    rgb = weight_colors()(np.linspace(0, 1, 33))[:, :3]
    assert rgb[0].tolist() == [1, 1, 1]
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    # CIELAB, all above its linear part
    lightness = 116 * np.cbrt(linear @ [0.2126, 0.7152, 0.0722]) - 16
    np.testing.assert_allclose(np.diff(lightness), -84 / 32, atol=0.5)


def test_large_alignment_shows_its_largest_weights(tmp_path):
    weights = torch.zeros(9, 4000)
    weights[7, 2500] = 1
    labels = {"keys": ["a"] * 4000, "queries": ["b"] * 9}
    picture = imread(plot(tmp_path / "figure.png", weights, **labels))
    assert max(picture.shape[:2]) < 4000
    inside = picture[:, : int(picture.shape[1] * 0.9), :3]
    darkest = inside.sum(-1) < 0.35 * 3
    bluish = inside[..., 2] > inside[..., 0] + 0.1  # the weight's dark blue; ink is nearly gray
    assert (darkest & bluish).any()


def test_same_weights_make_the_same_file_whatever_the_settings_of_matplotlib(tmp_path):
    weights = torch.randn(len(TARGET), len(SOURCE)).softmax(-1)
    for suffix in SUFFIXES:
        plain = plot(tmp_path / f"a{suffix}", weights).read_bytes()
        with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30}):
            before = dict(matplotlib.rcParams)
            assert plot(tmp_path / f"b{suffix}", weights).read_bytes() == plain
            assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_unusual_tokens_are_drawn(tmp_path, suffix):
    thai = "\u0e21\u0e35\u0e19\u0e32\u0e04\u0e21"
    tokens = ["\ud800", "\x00", "", "\U0001f642", thai, "x" * 99, "\\frac{"]
    options = {"keys": tokens, "queries": tokens[:3], "title": "$ \x07 " * 80}
    check_picture(plot(tmp_path / f"figure{suffix}", torch.rand(3, 7), **options))
