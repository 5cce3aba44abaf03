"""Heat maps of numbers over an image: several panels, each scaled to its own largest number.

The title of a panel states its scale; the image under it is gray. The colors are those of the page.

    weights           magenta, transparent for a weight of 0
    signed numbers    blue and orange, transparent for the half of the places with small magnitudes,
                      so that the image is in sight where all numbers are alike
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from regard.errors import UserError
from regard.look.figures.labels import readable

_MAX_PANELS = 100
"""Largest number of panels: more take long to draw and are too small to see."""
_SIDE = 1.8
_COLOR, _ABOVE, _BELOW, _OPACITY = "#e6007e", "#0c56a5", "#d55e00", 0.75
"""Colors of the largest weight, number above and number below zero; opacity, as in the viewer."""
_PALE = 0.6
"""Opacity of an image on white, below signed numbers: dark places would hide their colors."""


def plot_heat(
    figure: Figure,
    pixels: NDArray[np.uint8],
    places: Sequence[tuple[float, ...] | None],
    panels: Sequence[tuple[str, NDArray[np.floating[Any]]]],
    *,
    title: str = "",
    about: str = "",
    is_signed: bool = False,
) -> None:
    """Plot an image (height, width[, 3]), then one panel for each name and numbers of `panels`.

    about:     what the numbers are, in a line below the title.
    places:    left, top, width, height of each number as fractions of the image's sides; None: not
               on the image.
    is_signed: numbers may be negative.
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
    if is_signed:
        gray = 255 - _PALE * (255 - gray)
    for axes, (name, numbers) in zip(grid[1:], panels, strict=False):
        _draw_image(axes, gray.round().astype(np.uint8))
        scale = _draw_numbers(axes, places, numbers, (width, height), is_signed=is_signed)
        axes.set_title(f"{readable(name, spaces=' ')} ({scale})", fontsize=7)
    marks = ["0", "largest\nof the panel"]
    if is_signed:
        marks = ["-largest\nof the panel", "clear:\nthe smaller\nhalf", marks[1]]
    shades = _colors(0.3, is_signed=is_signed)(np.linspace(0, 1, 256))
    colors = ListedColormap(1 - shades[:, 3:] * (1 - shades[:, :3]))  # over white
    style = {"ticks": np.linspace(0, 1, len(marks)), "fraction": 0.02, "pad": 0.01}
    bar = figure.colorbar(ScalarMappable(cmap=colors), ax=grid, **style)
    bar.ax.set_yticklabels(marks, fontsize=7)
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


def _draw_numbers(
    axes: Axes,
    places: Sequence[tuple[float, ...] | None],
    numbers: NDArray[np.floating[Any]],
    sides: tuple[int, int],
    *,
    is_signed: bool,
) -> str:
    """Color each place by its number, and return the scale of the numbers on the image."""
    width, height = sides
    frames, shown = [], []
    for place, number in zip(places, numbers, strict=True):
        if place is not None:
            x, y, w, h = place
            frames.append(Rectangle((x * width, y * height), w * width, h * height))
            shown.append(number)
    sizes = np.sort(np.abs(shown))
    largest, count = float(sizes.max(initial=0)), len(sizes) // 2 if is_signed else 0
    clear, bound = float(sizes[:count].max(initial=0)), max(largest, 1e-12)
    heat = PatchCollection(frames, cmap=_colors(clear / bound, is_signed=is_signed), linewidth=0)
    heat.set_array(np.array(shown))
    heat.set_clim(-bound if is_signed else 0, bound)
    axes.add_collection(heat)
    return f"\u00b1{clear:.3g} to \u00b1{largest:.3g}" if is_signed else f"up to {largest:.3g}"


def _colors(clear: float, *, is_signed: bool) -> LinearSegmentedColormap:
    """Return the colors over an image; clear: part of the scale of magnitudes without color."""
    above, below = to_rgba(_ABOVE)[:3], to_rgba(_BELOW)[:3]
    opacity = _OPACITY if clear < 1 else 0.0
    if is_signed:
        middle = [((1 - clear) / 2, (*below, 0.0)), ((1 + clear) / 2, (*above, 0.0))]
        stops = [(0.0, (*below, opacity)), *middle, (1.0, (*above, opacity))]
    else:
        color = to_rgba(_COLOR)[:3]
        stops = [(0.0, (*color, 0.0)), (1.0, (*color, opacity))]
    return LinearSegmentedColormap.from_list("over", stops, N=2048)
