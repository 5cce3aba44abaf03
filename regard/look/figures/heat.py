"""Heat maps of weights over an image: several panels, each scaled to its own largest weight.

The title of a panel states its largest weight; the image under it is gray. The colors are those of
the page: magenta, transparent for a weight of 0. A scale from 0 to the largest weight of a panel is
          at the right.
"""

from collections.abc import Sequence
from pathlib import Path
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
from regard.look.figures.alignment import plot_style, render_figure
from regard.look.figures.labels import escape_missing, families_for, isolate_sides, readable
from regard.look.figures.output import check_path
from regard.system.writing import write_atomically

_COLUMNS = 6
_MOST_PANELS = 100
"""Limit on the number of panels: more take long to draw and are too small to see."""
_SIDE = 1.8
_COLOR, _OPACITY = "#e6007e", 0.75
"""Color of the largest weight, and its opacity, as in the viewer."""


def plot_heat(
    pixels: NDArray[np.uint8],
    places: Sequence[tuple[float, ...] | None],
    panels: Sequence[tuple[str, NDArray[np.floating[Any]]]],
    path: str | Path,
    *,
    title: str = "",
    about: str = "",
    overwrite: bool = False,
) -> Path:
    """Plot an image (height, width) or (height, width, 3), then one panel for each name and weights
    of `panels`.

    about:   what the numbers are, in a line below the title.
    places:  left, top, width, height of each weight as fractions of the image's sides; None: not on
    the image.
    Raises:  UserError for more than 100 panels, another suffix, an existing file (unless
             overwrite), or if the folder does not exist.
    """
    path = Path(path)
    check_path(path, overwrite)
    if len(panels) > _MOST_PANELS:
        raise UserError(
            f"{path}: a figure must have at most {_MOST_PANELS} panels, one per token or head, got "
            f"{len(panels):,}: "
            "use a shorter input, or FILE.html, which shows one at a time"
        )
    names = [readable(name, spaces=" ") for name, _ in panels]
    families = families_for([*names, title, about])
    count = 1 + len(panels)
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    height, width = pixels.shape[:2]
    with plot_style(families):
        figure = Figure(
            figsize=(_SIDE * columns + 0.7, (_SIDE * height / width + 0.3) * rows + 0.6),
            layout="constrained",
        )
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for panel in axes:
            panel.set_axis_off()
        _draw_image(axes[0], pixels)
        for panel, name, (_, weights) in zip(axes[1:], names, panels, strict=False):
            _draw_image(panel, _gray(pixels))
            largest = f" (up to {_draw_weights(panel, places, weights, (width, height)):.3g})"
            panel.set_title(escape_missing(name, families) + largest, fontsize=7)
        _draw_scale(figure, axes)
        lines = [readable(line, max_length=200, spaces=" ") for line in (title, about) if line]
        if lines:
            figure.suptitle(
                "\n".join(isolate_sides(escape_missing(line, families)) for line in lines),
                fontsize=9,
            )
        picture = render_figure(figure, path.suffix.lower())
    write_atomically(path, picture, overwrite=overwrite)
    return path


def _colors() -> LinearSegmentedColormap:
    """Return the color map of weights over a picture: the same color, transparent for 0."""
    red, green, blue, _ = to_rgba(_COLOR)
    return LinearSegmentedColormap.from_list(
        "over", [(red, green, blue, 0.0), (red, green, blue, _OPACITY)]
    )


def _gray(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the lightness of the pixels (ITU-R BT.709, as the filter of the viewer)."""
    return (
        pixels
        if pixels.ndim == 2
        else (pixels @ np.array([0.2126, 0.7152, 0.0722])).round().astype(np.uint8)
    )


def _draw_scale(figure: Figure, axes: Sequence[Axes]) -> None:
    strongest = [1 - _OPACITY + _OPACITY * part for part in to_rgba(_COLOR)[:3]]  # over white
    colors = LinearSegmentedColormap.from_list("scale", ["#ffffff", strongest])
    bar = figure.colorbar(
        ScalarMappable(cmap=colors), ax=axes, ticks=[0, 1], fraction=0.02, pad=0.01
    )
    bar.ax.set_yticklabels(["0", "largest\nof the panel"], fontsize=7)
    bar.ax.tick_params(length=2, width=0.6)
    bar.outline.set(linewidth=0.6)


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
    placed = [
        (place, weight) for place, weight in zip(places, weights, strict=True) if place is not None
    ]
    frames = [
        Rectangle((x * width, y * height), w * width, h * height) for (x, y, w, h), _ in placed
    ]
    numbers = np.array([weight for _, weight in placed])
    heat = PatchCollection(frames, cmap=_colors(), linewidth=0)
    heat.set_array(numbers)
    largest = float(numbers.max(initial=0))
    heat.set_clim(0, max(largest, 1e-12))
    axes.add_collection(heat)
    return largest
