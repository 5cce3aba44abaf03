"""Heat maps of weights over an image: several panels, each scaled to its own largest weight.

The title of a panel states its largest weight; the image under it is gray. The colors are those of
the page: magenta, transparent for a weight of 0.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from regard.errors import UserError
from regard.look.figures.labels import readable

_MAX_PANELS = 100
"""Largest number of panels: more take long to draw and are too small to see."""
_SIDE = 1.8
_COLOR, _OPACITY = "#e6007e", 0.75
"""Color of the largest weight, and its opacity, as in the viewer."""


def plot_heat(
    figure: Figure,
    pixels: NDArray[np.uint8],
    places: Sequence[tuple[float, ...] | None],
    panels: Sequence[tuple[str, NDArray[np.floating[Any]]]],
    *,
    title: str = "",
    about: str = "",
) -> None:
    """Plot an image (height, width[, 3]), then one panel for each name and weights of `panels`.

    about:  what the numbers are, in a line below the title.
    places: left, top, width, height of each weight as fractions of the image's sides; None: not on
            the image.
    """
    if len(panels) > _MAX_PANELS:
        raise UserError(
            f"a figure must have at most {_MAX_PANELS} panels, one per token or head, got "
            f"{len(panels):,}: use a shorter input, or FILE.html, which shows one at a time"
        )
    columns = min(6, 1 + len(panels))
    rows = -(-(1 + len(panels)) // columns)
    height, width = pixels.shape[:2]
    figure.set_size_inches(_SIDE * columns + 0.7, (_SIDE * height / width + 0.3) * rows + 0.6)
    figure.set_layout_engine("constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid:
        axes.set_axis_off()
    _draw_image(grid[0], pixels)
    # The lightness of the pixels (ITU-R BT.709), as the filter of the viewer.
    gray = pixels if pixels.ndim == 2 else pixels @ np.array([0.2126, 0.7152, 0.0722])
    for axes, (name, weights) in zip(grid[1:], panels, strict=False):
        _draw_image(axes, gray.round().astype(np.uint8))
        largest = _draw_weights(axes, places, weights, (width, height))
        axes.set_title(f"{readable(name, spaces=' ')} (up to {largest:.3g})", fontsize=7)
    strongest = [1 - _OPACITY + _OPACITY * part for part in to_rgba(_COLOR)[:3]]  # over white
    colors = LinearSegmentedColormap.from_list("scale", ["#ffffff", strongest])
    bar = figure.colorbar(
        ScalarMappable(cmap=colors), ax=grid, ticks=[0, 1], fraction=0.02, pad=0.01
    )
    bar.ax.set_yticklabels(["0", "largest\nof the panel"], fontsize=7)
    bar.ax.tick_params(length=2, width=0.6)
    bar.outline.set(linewidth=0.6)
    lines = [readable(line, max_length=200, spaces=" ") for line in (title, about) if line]
    figure.suptitle("\n".join(lines), fontsize=9)


def _draw_image(axes: Axes, pixels: NDArray[np.uint8]) -> None:
    height, width = pixels.shape[:2]
    smooth = None if max(height, width) >= 200 else "nearest"
    extent = (0, width, height, 0)
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation=smooth, extent=extent)
    axes.set(xlim=(0, width), ylim=(height, 0))


def _draw_weights(
    axes: Axes,
    places: Sequence[tuple[float, ...] | None],
    weights: NDArray[np.floating[Any]],
    sides: tuple[int, int],
) -> float:
    """Color each place by its weight, and return the largest weight on the image."""
    width, height = sides
    frames, numbers = [], []
    for place, weight in zip(places, weights, strict=True):
        if place is not None:
            x, y, w, h = place
            frames.append(Rectangle((x * width, y * height), w * width, h * height))
            numbers.append(weight)
    clear, full = (*to_rgba(_COLOR)[:3], 0.0), (*to_rgba(_COLOR)[:3], _OPACITY)
    colors = LinearSegmentedColormap.from_list("over", [clear, full])
    heat = PatchCollection(frames, cmap=colors, linewidth=0)
    heat.set_array(np.array(numbers))
    largest = float(max(numbers, default=0))
    heat.set_clim(0, max(largest, 1e-12))
    axes.add_collection(heat)
    return largest
