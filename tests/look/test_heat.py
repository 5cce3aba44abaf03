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
    picture, first, second, _ = figure[0].axes
    assert not picture.collections
    for axes, factor in ((first, 1), (second, 2)):
        (heat,) = axes.collections
        assert isinstance(heat, PatchCollection)
        assert heat.get_array().tolist() == pytest.approx(
            [factor * 0.1, factor * 0.5, factor * 0.05]
        )
        assert heat.get_clim() == (
            0,
            pytest.approx(factor * 0.5),
        )  # the largest weight with a place
        corners = [path.get_extents().bounds for path in heat.get_paths()]
        assert corners == [(0, 0, 40, 20), (40, 0, 40, 20), (0, 20, 60, 10)]
        assert (axes.get_xlim(), axes.get_ylim()) == (
            (0, 80),
            (40, 0),
        )  # the first row is at the top


def test_panels_are_named_with_their_largest_weight(tmp_path):
    panels = [("$a_1$ <b>", np.array([0.125, 0.25, 0.5, 0])), ("none", np.zeros(4))]
    path = plot_heat(PIXELS, PLACES, panels, tmp_path / "x.svg", title="this & that")
    titles = re.findall(r">([^<>]+)</text>", path.read_text(encoding="utf-8"))
    # Weights without a place do not count.
    assert titles[:2] == ["$a_1$ &lt;b&gt; (up to 0.25)", "none (up to 0)"]
    assert "this &amp; that" in titles


def test_colors_are_those_of_the_page_with_a_scale_and_the_measure(figure, tmp_path):
    weights = np.array([0.1, 0.2, 0.3, 0.0])
    path = plot_heat(
        PIXELS,
        PLACES,
        [("head 1", weights)],
        tmp_path / "x.svg",
        title="digit",
        about="weights of x",
    )
    magenta = (230 / 255, 0, 126 / 255)  # viewer/src/views/selection.ts
    _, panel, bar = figure[0].axes
    (heat,) = panel.collections
    colors = heat.get_facecolor()
    assert colors[:, :3] == pytest.approx(np.tile(magenta, (3, 1)), abs=1e-6)
    assert colors[:, 3] == pytest.approx([0.375, 0.75, 0], abs=0.01)  # in proportion to the weight
    words = re.findall(r">([^<>]+)</text>", path.read_text(encoding="utf-8"))
    assert {"0", "largest", "of the panel", "digit", "weights of x"} <= set(words)
    assert [label.get_text() for label in bar.get_yticklabels()] == ["0", "largest\nof the panel"]


def test_the_largest_weight_is_at_its_place_in_the_picture(tmp_path):
    """The picture is black, so that magenta pixels are weights."""
    places = [(0.5 * (i % 2), 0.5 * (i // 2), 0.5, 0.5) for i in range(4)]
    path = plot_heat(
        np.zeros((40, 40), np.uint8), places, [("x", np.eye(4)[2])], tmp_path / "x.png"
    )
    pixels = imread(path)[..., :3]
    rows, columns = np.nonzero((pixels[..., 0] > 0.5) & (pixels[..., 1] < 0.1))
    height, width = rows.max() - rows.min() + 1, columns.max() - columns.min() + 1
    assert len(rows) == height * width
    below, left = int(rows.mean()), int(columns.mean())
    for row, column in (
        (below, left + width),
        (below - height, left),
        (below - height, left + width),
    ):
        assert pixels[row, column].max() == 0


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_no_file_is_replaced_by_default(suffix, tmp_path):
    path, panels = tmp_path / f"x{suffix}", [("x", np.ones(4))]
    plot_heat(np.zeros((4, 4, 3), np.uint8), PLACES, panels, path)
    before = path.read_bytes()
    with pytest.raises(UserError, match="already exists"):
        plot_heat(PIXELS, PLACES, panels, path)
    assert path.read_bytes() == before
    plot_heat(PIXELS, PLACES, panels, path, overwrite=True)
    for wrong, message in (
        ("x.txt", "must end in one of"),
        ("no/x.png", "the folder .* does not exist"),
    ):
        with pytest.raises(UserError, match=message):
            plot_heat(PIXELS, PLACES, panels, tmp_path / wrong)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_numbers_of_places_and_weights_must_match():
    with pytest.raises(ValueError, match="zip"):
        plot_heat(PIXELS, PLACES, [("x", np.ones(3))], "never.png")
