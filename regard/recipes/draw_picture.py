"""A picture of drawings of a text: several of them, and for each word where in the first one it was read.

    map_w[p] = mean over layers and heads of weight[code p, word w]        on the grid of codes, row by row

Each map is as bright as its own largest weight; the number beside a word is its share of all that was read.
"""

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from regard.look.labels import readable
from regard.look.map import Seen

__all__ = ["picture", "word_maps"]

_COLUMNS = 6


def word_maps(read: Seen, grid: tuple[int, int]) -> NDArray[np.float64] | None:
    """For each word the weights (words, rows, columns) with which the places read it; None without attention."""
    found = [one for one in read.maps if one.queries == "said" and one.keys == "source"]
    if not found:
        return None
    mean = torch.stack([one.weights.mean(0) for one in found]).mean(0)  # (place, word)
    return mean.T.reshape(-1, *grid).double().numpy()


def picture(read: Seen | None, *, images: NDArray[np.uint8], grid: tuple[int, int], title: str) -> Figure:
    """The drawings (count, channels, height, width) in a row, and below them the maps of the first.

    read: what was read for the first; None if the model does not attend.
    """
    maps = None if read is None else word_maps(read, grid)
    words = () if read is None else read.scene.axes["source"].labels
    count = 0 if maps is None else len(maps)
    rows = 1 + -(-count // _COLUMNS)
    height, width = images.shape[2:]
    figure = Figure(figsize=(1.7 * _COLUMNS, (1.7 * height / width + 0.35) * rows + 0.4), layout="constrained", dpi=120)
    axes = figure.subplots(rows, _COLUMNS, squeeze=False)
    for one in axes.flat:
        one.set_axis_off()
    for one, image in zip(axes[0], images, strict=False):
        _show(one, image)
    if maps is not None:
        for one, label, weights in zip(axes[1:].flat, words, maps, strict=False):
            _show(one, images[0], alpha=0.35)
            sides = (-0.5, width - 0.5, height - 0.5, -0.5)
            one.imshow(weights, cmap="magma", alpha=0.65, extent=sides, vmin=0, vmax=weights.max())
            one.set_title(f"{readable(label)}  {weights.mean():.2f}", fontsize=8)
    figure.suptitle(readable(title, max_length=200, spaces=" "), fontsize=10)
    return figure


def _show(axes, image: NDArray[np.uint8], alpha: float = 1.0) -> None:
    shown = image.transpose(1, 2, 0)
    axes.imshow(shown[..., 0] if shown.shape[2] == 1 else shown, cmap="gray", vmin=0, vmax=255, alpha=alpha)
