"""A picture under what was read of it: several panels, each as bright as its own largest weight.

The number in a panel's title is what its brightest place has; the picture itself is pale under the heat.
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
from regard.files import write_atomically
from regard.look.files import check_path
from regard.look.labels import families_for, readable, spelled
from regard.look.plot import drawing, saved

_COLUMNS = 6
_MOST_PANELS = 100
"""Panels that can still be drawn in seconds, and be seen."""
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
    """The picture (height, width) or (height, width, 3), then a panel for each of `panels`: a name and its weights.

    places:  for each weight left, top, width, height as shares of the picture's sides; None: lies nowhere.
    Raises:  UserError for more than 100 panels, another suffix, a folder that is not there, a file that is
             (unless overwrite).
    """
    path = Path(path)
    check_path(path, overwrite)
    if len(panels) > _MOST_PANELS:
        raise UserError(
            f"{path}: a picture has at most {_MOST_PANELS} panels, but this would have {len(panels):,}, one for each "
            "word or head: use a shorter input, or FILE.html, which shows them one at a time"
        )
    names = [readable(name, spaces=" ") for name, _ in panels]
    families = families_for([*names, title])
    count = 1 + len(panels)
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    height, width = pixels.shape[:2]
    with drawing(families):
        figure = Figure(figsize=(_SIDE * columns, (_SIDE * height / width + 0.3) * rows + 0.4), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).flat
        for one in axes:
            one.set_axis_off()
        _show(axes[0], pixels)
        for one, name, (_, weights) in zip(list(axes)[1:], names, panels, strict=False):
            _show(one, pixels, alpha=_PALE)
            largest = f" (up to {_warm(one, places, weights, (width, height)):.3g})"
            one.set_title(spelled(name, families) + largest, fontsize=7)
        if title:
            figure.suptitle(spelled(readable(title, max_length=200, spaces=" "), families), fontsize=9)
        picture = saved(figure, path.suffix.lower())
    write_atomically(path, picture, overwrite=overwrite)
    return path


def _show(axes: Axes, pixels: NDArray[np.uint8], *, alpha: float = 1.0) -> None:
    height, width = pixels.shape[:2]
    smooth = None if max(height, width) >= 200 else "nearest"
    extent = (0, width, height, 0)
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, alpha=alpha, interpolation=smooth, extent=extent)
    axes.set(xlim=(0, width), ylim=(height, 0))


def _warm(
    axes: Axes, places: Sequence[tuple[float, ...] | None], weights: NDArray[np.floating[Any]], sides: tuple[int, int]
) -> float:
    """Shade each place by its weight; the largest of those that lie somewhere."""
    width, height = sides
    there = [(place, weight) for place, weight in zip(places, weights, strict=True) if place is not None]
    frames = [Rectangle((x * width, y * height), w * width, h * height) for (x, y, w, h), _ in there]
    numbers = np.array([weight for _, weight in there])
    heat = PatchCollection(frames, cmap="magma", alpha=0.65, linewidth=0)
    heat.set_array(numbers)
    largest = float(numbers.max(initial=0))
    heat.set_clim(0, max(largest, 1e-12))
    axes.add_collection(heat)
    return largest
