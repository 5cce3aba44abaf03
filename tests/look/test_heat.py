"""Heat maps over a picture: places, weights, titles of panels, colors."""

import numpy as np
import pytest

from regard.errors import UserError
from regard.look.figures.heat import plot_heat
from tests.look.pictures import draw, texts_of

PLACES = ((0.0, 0.0, 0.5, 0.5), (0.5, 0.0, 0.5, 0.5), None, (0.0, 0.5, 0.75, 0.25))
PIXELS = np.full((40, 80), 255, np.uint8)


def test_each_weight_lies_on_its_place(figures, tmp_path):
    weights = np.array([0.1, 0.5, 0.3, 0.05])
    panels = [("head 1", weights), ("head 2", 2 * weights)]
    draw(tmp_path / "x.png", plot_heat, PIXELS, PLACES, panels)
    picture, first, second, _ = figures[0].axes
    assert not picture.collections
    for axes, factor in ((first, 1), (second, 2)):
        (heat,) = axes.collections
        shown = [factor * 0.1, factor * 0.5, factor * 0.05]
        assert heat.get_array().tolist() == pytest.approx(shown)
        assert heat.get_clim() == (0, pytest.approx(factor * 0.5))  # the largest with a place
        corners = [path.get_extents().bounds for path in heat.get_paths()]
        assert corners == [(0, 0, 40, 20), (40, 0, 40, 20), (0, 20, 60, 10)]
        assert (axes.get_xlim(), axes.get_ylim()) == ((0, 80), (40, 0))  # first row at the top


def test_panels_are_named_with_their_largest_weight(tmp_path):
    panels = [("$a_1$ <b>", np.array([0.125, 0.25, 0.5, 0])), ("none", np.zeros(4))]
    texts = {"title": "this & that", "about": "weights of x"}
    titles = texts_of(draw(tmp_path / "x.svg", plot_heat, PIXELS, PLACES, panels, **texts))
    # Weights without a place do not count.
    assert titles[:2] == ["$a_1$ <b> (up to 0.25)", "none (up to 0)"]
    assert {"this & that", "weights of x", "0", "largest", "of the panel"} <= set(titles)


def test_colors_are_those_of_the_page(figures, tmp_path):
    weights = np.array([0.1, 0.2, 0.3, 0.0])
    draw(tmp_path / "x.svg", plot_heat, PIXELS, PLACES, [("head 1", weights)])
    magenta = (230 / 255, 0, 126 / 255)  # viewer/src/views/selection.ts
    colors = figures[0].axes[1].collections[0].get_facecolor()
    assert colors[:, :3] == pytest.approx(np.tile(magenta, (3, 1)), abs=1e-6)
    assert colors[:, 3] == pytest.approx([0.375, 0.75, 0], abs=0.01)  # in proportion to the weight


def test_more_panels_than_can_be_seen_are_refused(tmp_path):
    panels = [("word", np.zeros(4))] * 101
    with pytest.raises(UserError, match=r"at most 100 panels, .* got 101"):
        draw(tmp_path / "x.png", plot_heat, PIXELS, PLACES, panels)
    assert not list(tmp_path.iterdir())
