"""Heat maps of weights over an image: several panels, each scaled to its own largest weight.

The title of a panel states its largest weight; the image under it is pale.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from regard.errors import UserError
from regard.look.figures.alignment import plot_style, render_figure
from regard.look.figures.labels import escape_missing, families_for, readable
from regard.look.figures.output import check_path
from regard.system.writing import write_atomically

_COLUMNS = 6
_MOST_PANELS = 100
"""Limit on the number of panels: more take long to draw and are too small to see."""
_SIDE = 1.8
_PALE = 0.55


def plot_heat(
    pixels: NDArray[np.uint8],
    places: Sequence[tuple[float, ...] | None],
    panels: Sequence[tuple[str, NDArray[np.floating[Any]]]],
    path: str | Path,
    *,
    title: str = "",
    overwrite: bool = False,
) -> Path:
    """Plot an image (height, width) or (height, width, 3), then one panel for each name and weights of `panels`.

    places:  left, top, width, height of each weight as fractions of the image's sides; None: not on the image.
    Raises:  UserError for more than 100 panels, another suffix, an existing file (unless overwrite), or if the folder
             does not exist.
    """
    path = Path(path)
    check_path(path, overwrite)
    if len(panels) > _MOST_PANELS:
        raise UserError(
            f"{path}: a figure must have at most {_MOST_PANELS} panels, one per token or head, got {len(panels):,}: "
            "use a shorter input, or FILE.html, which shows one at a time"
        )
    names = [readable(name, spaces=" ") for name, _ in panels]
    families = families_for([*names, title])
    count = 1 + len(panels)
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    height, width = pixels.shape[:2]
    with plot_style(families):
        figure = Figure(figsize=(_SIDE * columns, (_SIDE * height / width + 0.3) * rows + 0.4), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).flat
        for panel in axes:
            panel.set_axis_off()
        _draw_image(axes[0], pixels)
        for panel, name, (_, weights) in zip(list(axes)[1:], names, panels, strict=False):
            _draw_image(panel, pixels, alpha=_PALE)
            largest = f" (up to {_draw_weights(panel, places, weights, (width, height)):.3g})"
            panel.set_title(escape_missing(name, families) + largest, fontsize=7)
        if title:
            figure.suptitle(escape_missing(readable(title, max_length=200, spaces=" "), families), fontsize=9)
        picture = render_figure(figure, path.suffix.lower())
    write_atomically(path, picture, overwrite=overwrite)
    return path


def _draw_image(axes: Axes, pixels: NDArray[np.uint8], *, alpha: float = 1.0) -> None:
    height, width = pixels.shape[:2]
    smooth = None if max(height, width) >= 200 else "nearest"
    extent = (0, width, height, 0)
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, alpha=alpha, interpolation=smooth, extent=extent)
    axes.set(xlim=(0, width), ylim=(height, 0))


def _draw_weights(
    axes: Axes, places: Sequence[tuple[float, ...] | None], weights: NDArray[np.floating[Any]], sides: tuple[int, int]
) -> float:
    """Color each place by its weight, and return the largest weight on the image."""
    width, height = sides
    placed = [(place, weight) for place, weight in zip(places, weights, strict=True) if place is not None]
    frames = [Rectangle((x * width, y * height), w * width, h * height) for (x, y, w, h), _ in placed]
    numbers = np.array([weight for _, weight in placed])
    heat = PatchCollection(frames, cmap="magma", alpha=0.65, linewidth=0)
    heat.set_array(numbers)
    largest = float(numbers.max(initial=0))
    heat.set_clim(0, max(largest, 1e-12))
    axes.add_collection(heat)
    return largest
