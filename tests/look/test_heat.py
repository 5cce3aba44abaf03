"""Heat maps over a picture: places, weights, titles of panels, and existing files."""

import re

import numpy as np
import pytest
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.image import imread

from regard.errors import UserError
from regard.look.figures import heat as module
from regard.look.figures.heat import plot_heat

PLACES = ((0.0, 0.0, 0.5, 0.5), (0.5, 0.0, 0.5, 0.5), None, (0.0, 0.5, 0.75, 0.25))
PIXELS = np.full((40, 80), 255, np.uint8)


@pytest.fixture
def figure(monkeypatch) -> list[Figure]:
    """Record the figures that are drawn."""
    figures = []

    class RecordedFigure(Figure):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            figures.append(self)

    monkeypatch.setattr(module, "Figure", RecordedFigure)
    return figures


def test_each_weight_lies_on_its_place(figure, tmp_path):
    weights = np.array([0.1, 0.5, 0.3, 0.05])
    plot_heat(PIXELS, PLACES, [("head 1", weights), ("head 2", 2 * weights)], tmp_path / "x.png")
    picture, first, second = figure[0].axes
    assert not picture.collections
    for axes, factor in ((first, 1), (second, 2)):
        (heat,) = axes.collections
        assert isinstance(heat, PatchCollection)
        assert heat.get_array().tolist() == pytest.approx([factor * 0.1, factor * 0.5, factor * 0.05])
        assert heat.get_clim() == (0, pytest.approx(factor * 0.5))  # the largest weight with a place
        corners = [path.get_extents().bounds for path in heat.get_paths()]
        assert corners == [(0, 0, 40, 20), (40, 0, 40, 20), (0, 20, 60, 10)]
        assert (axes.get_xlim(), axes.get_ylim()) == ((0, 80), (40, 0))  # the first row is at the top


def test_panels_are_named_with_their_largest_weight(tmp_path):
    panels = [("$a_1$ <b>", np.array([0.125, 0.25, 0.5, 0])), ("none", np.zeros(4))]
    path = plot_heat(PIXELS, PLACES, panels, tmp_path / "x.svg", title="this & that")
    titles = re.findall(r">([^<>]+)</text>", path.read_text(encoding="utf-8"))
    # Weights without a place do not count.
    assert titles == ["$a_1$ &lt;b&gt; (up to 0.25)", "none (up to 0)", "this &amp; that"]


def test_the_brightest_place_is_the_brightest_in_the_picture(tmp_path):
    """The picture is black, so that light pixels are weights."""
    places = [(0.5 * (i % 2), 0.5 * (i // 2), 0.5, 0.5) for i in range(4)]
    path = plot_heat(np.zeros((40, 40), np.uint8), places, [("x", np.eye(4)[2])], tmp_path / "x.png")
    pixels = imread(path)[..., :3].sum(-1)
    width = pixels.shape[1]
    right = pixels[:, width // 2 :]
    dark = right < 2.9
    rows, columns = np.flatnonzero(dark.any(1)), np.flatnonzero(dark.any(0))
    panel = right[np.ix_(range(rows[-1] - (columns[-1] - columns[0]), rows[-1]), range(columns[0], columns[-1]))]
    half = len(panel) // 2
    quarter = half // 2
    light = [[panel[quarter + i * half, quarter + j * half] for j in range(2)] for i in range(2)]
    assert light[1][0] > max(light[0][0], light[0][1], light[1][1]) + 0.5


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_no_file_is_replaced_by_default(suffix, tmp_path):
    path, panels = tmp_path / f"x{suffix}", [("x", np.ones(4))]
    plot_heat(np.zeros((4, 4, 3), np.uint8), PLACES, panels, path)
    before = path.read_bytes()
    with pytest.raises(UserError, match="already exists"):
        plot_heat(PIXELS, PLACES, panels, path)
    assert path.read_bytes() == before
    plot_heat(PIXELS, PLACES, panels, path, overwrite=True)
    for wrong, message in (("x.txt", "must end in one of"), ("no/x.png", "the folder .* does not exist")):
        with pytest.raises(UserError, match=message):
            plot_heat(PIXELS, PLACES, panels, tmp_path / wrong)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_numbers_of_places_and_weights_must_match():
    with pytest.raises(ValueError, match="zip"):
        plot_heat(PIXELS, PLACES, [("x", np.ones(3))], "never.png")
