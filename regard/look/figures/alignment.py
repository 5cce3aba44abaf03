"""Alignment figure: weights with source tokens across and target tokens down.

Pairs that the mask excludes, whose recorded weight is -0 (regard.look.arrays.MASKED), are hatched.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from regard.look.arrays import MASKED
from regard.look.figures.canvas import (
    GRID,
    INK,
    PALE,
    draw_weight_scale,
    open_figure,
    weight_colors,
)
from regard.look.figures.labels import readable
from regard.look.figures.layout import SLANT, TITLE_FONT, Layout, lay_out

_HATCH = "#c3ccd5"
_MAX_CELLS = 1500
"""Largest number of cells per side of an image; of more, neighbors are merged into one with the
largest weight."""
_MANY_CELLS = 20_000
"""More cells than this are drawn as an image without a grid, instead of one shape each."""


class Panel(NamedTuple):
    """Weights of one head, or a mean."""

    title: str
    weights: Float[Tensor, "target source"]


def average(weights: Float[Tensor, "head target source"]) -> Float[Tensor, "target source"]:
    """Return the mean over the heads; a pair that all of them mask has -0, which a sum would not
    keep."""
    return weights.mean(0).masked_fill(_is_masked(weights).all(0), MASKED)


def plot_alignment(
    panels: Sequence[Panel],
    path: Path,
    *,
    source: Sequence[str],
    target: Sequence[str],
    title: str = "",
    axes: tuple[str, str] = ("source", "target"),
    width: float | None = None,
    overwrite: bool = False,
) -> None:
    """Plot weights: target tokens as rows, source tokens as columns, darker for larger weights.

    axes:  titles of the axes of keys and of queries.
    width: largest width of the figure in centimeters; by default 18, and more if one matrix needs
           it.
    """
    source, target = [readable(label) for label in source], [readable(label) for label in target]
    inches = None if width is None else width / 2.54
    layout = lay_out([panel.title for panel in panels], source=source, target=target, width=inches)
    with open_figure(path, layout.size, overwrite=overwrite) as figure:
        for number, panel in enumerate(panels):
            place = figure.add_axes(layout.box(number))
            place.set_title(panel.title, fontsize=TITLE_FONT, color=INK, loc="left", pad=5)
            as_image = len(panels) * panel.weights.numel() > _MANY_CELLS
            cells = _draw_cells(place, panel.weights, as_image=as_image)
            _label_source(place, source, layout)
            is_first = number % layout.columns == 0
            ticks = range(0, len(target) if is_first else 0, layout.target_every)
            place.set_yticks([i + 0.5 for i in ticks], [target[i] for i in ticks])
            place.tick_params("y", labelsize=layout.target_font)
            if number + layout.columns >= len(panels):
                place.set_xlabel(axes[0], fontsize=8, color=PALE)
            if number > 0:
                continue
            place.set_ylabel(axes[1], fontsize=8, color=PALE)
            draw_weight_scale(figure, cells, layout.scale_box())
            words = readable(title, max_length=400, spaces=" ") if title else ""
            lines = textwrap.wrap(words, max(40, int(layout.size[0] * 72 / 6.2)))
            place.annotate(
                "\n".join(lines),
                (0, 1),
                xytext=(0, 25 if panel.title else 8),
                xycoords="axes fraction",
                textcoords="offset points",
                fontsize=11,
                color=INK,
            )


def _is_masked(weights: Tensor) -> Tensor:
    """Return True for the recorded weights of masked pairs."""
    return (weights == 0) & weights.signbit()


def _draw_cells(axes: Axes, weights: Tensor, *, as_image: bool) -> ScalarMappable:
    num_targets, num_sources = weights.shape
    colors = {"cmap": weight_colors(), "vmin": 0, "vmax": 1}
    if as_image:
        size = min(num_targets, _MAX_CELLS), min(num_sources, _MAX_CELLS)
        cells = nn.functional.adaptive_max_pool2d(weights[None], size)[0].numpy()
        extent = (0, num_sources, num_targets, 0)
        artist = axes.imshow(cells, extent=extent, aspect="auto", interpolation="nearest", **colors)
    else:
        artist = axes.pcolormesh(weights.numpy(), edgecolors=GRID, linewidth=0.4, **colors)
        _hatch(axes, _is_masked(weights))
    axes.set(xlim=(0, num_sources), ylim=(num_targets, 0))
    axes.tick_params(length=0, pad=3, colors=INK)
    axes.spines[:].set(color=PALE, linewidth=0.6)
    return artist


def _hatch(axes: Axes, masked: Tensor) -> None:
    """Hatch the cells of masked pairs, neighbors of a row as one."""
    edges = torch.diff(nn.functional.pad(masked.int(), (1, 1)))
    begins, ends = (edges == 1).nonzero().tolist(), (edges == -1).nonzero().tolist()
    cells = []
    for (row, begin), (_, end) in zip(begins, ends, strict=True):
        cells.append(Rectangle((begin, row), end - begin, 1))
    if cells:
        style = {"facecolor": "none", "edgecolor": _HATCH, "hatch": "/////", "linewidth": 0}
        axes.add_collection(PatchCollection(cells, **style))


def _label_source(axes: Axes, labels: Sequence[str], layout: Layout) -> None:
    shown = labels[:: layout.source_every]
    centers = [index + 0.5 for index in range(0, len(labels), layout.source_every)]
    axes.set_xticks(centers, shown, fontsize=layout.source_font)
    long = [label for label in axes.get_xticklabels() if len(label.get_text()) > 1]
    # A few long labels among single characters must not be slanted over their neighbors.
    angle = SLANT if 2 * len(long) > len(centers) else 90
    for label in long:
        label.set(rotation=angle, ha="right", va="center", rotation_mode="anchor")
