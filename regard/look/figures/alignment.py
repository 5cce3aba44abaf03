"""Alignment figure: the weights of one read, with source tokens across and target tokens down.

Pairs that the mask excludes, whose recorded weight is -0 (regard.look.arrays.MASKED), are hatched.
"""

import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from regard.errors import UserError
from regard.look.arrays import MASKED
from regard.look.figures.labels import escape_missing, families_for, isolate_sides, readable
from regard.look.figures.layout import SLANT, TITLE_FONT, Layout, lay_out
from regard.look.figures.output import check_path
from regard.system.writing import write_atomically


@dataclass(frozen=True, kw_only=True, eq=False)
class Alignment:
    """Attention weights of one layer between target and source tokens, with the labels of both.

    Raises: ValueError if sizes do not match, or a weight is not finite.
    """

    source: Sequence[str]
    """Label of each source token."""
    target: Sequence[str]
    """Label of each target token."""
    weights: Float[Tensor, "head target source"]
    """Each row sums to one; a masked pair has -0."""
    layer: str = ""
    """Name of the layer; empty if there is only one."""
    head_names: Sequence[str] = ()
    """Name of each head; default: "head 1", "head 2", ..."""
    title: str = ""
    """Title of the figure."""
    axes: tuple[str, str] = ("source", "target")
    """Titles of the axes of keys and of queries."""

    def __post_init__(self) -> None:
        if not self.head_names:
            names = tuple(f"head {number}" for number in range(1, self.weights.shape[0] + 1))
            object.__setattr__(self, "head_names", names)
        expected = len(self.head_names), len(self.target), len(self.source)
        if tuple(self.weights.shape) != expected:
            raise ValueError(
                f"weights must have the shape (head names, target labels, source labels) = "
                f"{expected}, "
                f"got {tuple(self.weights.shape)}"
            )
        if 0 in expected:
            raise ValueError(
                f"weights must have at least one head, target and source token, got sizes "
                f"{expected}"
            )
        if not bool(self.weights.isfinite().all()):
            raise ValueError("weights must be finite, got NaN or infinity from the model")

    def mean(self) -> Float[Tensor, "target source"]:
        """Return the weights averaged over the heads; a pair that all heads mask has -0."""
        return average(self.weights)


def average(weights: Float[Tensor, "head target source"]) -> Float[Tensor, "target source"]:
    """Return the mean over the heads; a pair that all of them mask has -0, which a sum would not
    keep."""
    return weights.mean(0).masked_fill(is_masked(weights).all(0), MASKED)


def is_masked(weights: Tensor) -> Tensor:
    """Return True for the recorded weights of masked pairs."""
    return (weights == 0) & weights.signbit()


_COLORS = "#ffffff #cfe3fd #9ec7fc #6aaafb #468de4 #2971c6 #0c56a5 #073e7a #032751"
"""White to dark blue: CIELAB lightness 100, 89.5, ... 16 in equal steps, OKLCH hue 255."""
_INK, _PALE, _GRID, _HATCH = "#1f2933", "#66727f", "#e6ebf0", "#c3ccd5"
_DPI = 200
_MAX_CELLS = 1500
"""Largest number of cells per side of an image; of more, neighbors are merged into one with the
largest weight."""
_MANY_CELLS = 20_000
"""More cells than this are drawn as an image without a grid, instead of one shape each."""


class _Panel(NamedTuple):
    title: str
    weights: Float[Tensor, "target source"]


def plot_alignment(
    alignments: Alignment | Sequence[Alignment],
    path: str | Path,
    *,
    layer: int | None = None,
    width: float | None = None,
    overwrite: bool = False,
) -> Path:
    """Plot attention weights: target tokens as rows, source tokens as columns, darker for larger
    weights.

    alignments: one alignment, or one per layer.
    path:       file to write, .png, .svg or .pdf; returned. SVG and PDF keep the labels as text.
    layer:      layer to plot head by head, from 1; by default the last.
    width:      largest width of the figure in centimeters; by default 18, and more if one matrix
    needs it.
    Raises:     UserError for another suffix, an existing file (unless overwrite), or if the folder
                or layer does not exist; ValueError for alignments of different tokens.
    """
    path = Path(path)
    check_path(path, overwrite)
    layers = [alignments] if isinstance(alignments, Alignment) else list(alignments)
    _check_layers(layers, layer)
    shown = layers[-1 if layer is None else layer - 1]
    source, target = (
        [readable(token) for token in tokens] for tokens in (shown.source, shown.target)
    )
    title = readable(shown.title, max_length=400, spaces=" ") if shown.title else ""
    families = families_for([*source, *target, title])
    if path.suffix.lower() != ".svg":
        source, target = (
            [escape_missing(label, families) for label in labels] for labels in (source, target)
        )
        title = escape_missing(title, families)
    title = isolate_sides(title)
    with plot_style(families):
        figure = _draw(
            _panels(layers, shown),
            source=source,
            target=target,
            title=title,
            names=shown.axes,
            width=width,
        )
        picture = render_figure(figure, path.suffix.lower())
    write_atomically(path, picture, overwrite=overwrite)
    return path


def weight_colors() -> LinearSegmentedColormap:
    """Return the color map: white for 0 to dark blue for 1, in equal steps of lightness."""
    return LinearSegmentedColormap.from_list("weight", _COLORS.split())


def _check_layers(layers: Sequence[Alignment], layer: int | None) -> None:
    if not layers:
        raise ValueError("alignments must not be empty")
    if layer is not None and not 1 <= layer <= len(layers):
        raise UserError(f"layer must be between 1 and {len(layers)}, got {layer}")
    tokens = [(list(alignment.source), list(alignment.target)) for alignment in layers]
    if any(other != tokens[0] for other in tokens):
        raise ValueError("alignments of one figure must have the same source and target tokens")


def _panels(layers: Sequence[Alignment], shown: Alignment) -> list[_Panel]:
    panels = []
    if len(layers) > 1:
        mean = average(torch.stack([alignment.mean() for alignment in layers]))
        panels.append(_Panel(f"mean of {len(layers)} layers", mean))
    if len(shown.head_names) == 1:
        return [*panels, _Panel(shown.layer, shown.weights[0])]
    layer = f"{shown.layer}, " if shown.layer else ""
    panels.append(_Panel(f"{layer}mean of {len(shown.head_names)} heads", shown.mean()))
    heads = zip(shown.head_names, shown.weights, strict=True)
    return [*panels, *(_Panel(f"{layer}{name}", weights) for name, weights in heads)]


@contextmanager
def plot_style(families: Sequence[str]) -> Iterator[None]:
    """Apply the settings of our figures to matplotlib, independent of the user's."""
    settings = {
        "font.family": [*families, "sans-serif"],
        "pdf.fonttype": 42,
        "svg.fonttype": "none",
        "hatch.linewidth": 0.5,
        "svg.hashsalt": "regard",
        "text.parse_math": False,  # $ in a label is a literal dollar sign
    }
    with style.context(["default", settings]), warnings.catch_warnings():
        # Only SVG labels still have such characters: their width is estimated here, the viewer has
        # its own fonts.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
        warnings.filterwarnings(
            "ignore", "Matplotlib currently does not support .* natively", UserWarning
        )
        yield


def _draw(
    panels: Sequence[_Panel],
    *,
    source: Sequence[str],
    target: Sequence[str],
    title: str,
    names: tuple[str, str],
    width: float | None,
) -> Figure:
    inches = None if width is None else width / 2.54
    layout = lay_out([panel.title for panel in panels], source=source, target=target, width=inches)
    figure = Figure(figsize=layout.size)
    for number, panel in enumerate(panels):
        axes = figure.add_axes(layout.box(number))
        axes.set_title(panel.title, fontsize=TITLE_FONT, color=_INK, loc="left", pad=5)
        cells = _draw_cells(
            axes, panel.weights, as_image=len(panels) * panel.weights.numel() > _MANY_CELLS
        )
        _label_source(axes, source, layout)
        _label_target(axes, target if number % layout.columns == 0 else (), layout)
        if number == 0:
            axes.set_ylabel(names[1], fontsize=8, color=_PALE)
            _draw_scale(figure, cells, layout)
            if title:
                _draw_title(axes, title, layout, above_panel_title=bool(panel.title))
        if number + layout.columns >= len(panels):
            axes.set_xlabel(names[0], fontsize=8, color=_PALE)
    return figure


def _draw_cells(axes: Axes, weights: Tensor, *, as_image: bool) -> ScalarMappable:
    num_targets, num_sources = weights.shape
    colors = {"cmap": weight_colors(), "vmin": 0, "vmax": 1}
    if as_image:
        size = min(num_targets, _MAX_CELLS), min(num_sources, _MAX_CELLS)
        cells = nn.functional.adaptive_max_pool2d(weights[None], size)[0]
        extent = (0, num_sources, num_targets, 0)
        artist = axes.imshow(
            cells.numpy(), extent=extent, aspect="auto", interpolation="nearest", **colors
        )
    else:
        artist = axes.pcolormesh(weights.numpy(), edgecolors=_GRID, linewidth=0.4, **colors)
        _hatch(axes, is_masked(weights))
    axes.set(xlim=(0, num_sources), ylim=(num_targets, 0))
    axes.tick_params(length=0, pad=3, colors=_INK)
    axes.spines[:].set(color=_PALE, linewidth=0.6)
    return artist


def _hatch(axes: Axes, masked: Tensor) -> None:
    """Hatch the cells of masked pairs, neighbors of a row as one."""
    edges = torch.diff(nn.functional.pad(masked.int(), (1, 1)))
    runs = zip((edges == 1).nonzero().tolist(), (edges == -1).nonzero()[:, 1].tolist(), strict=True)
    cells = [Rectangle((begin, row), end - begin, 1) for (row, begin), end in runs]
    if cells:
        style = {"facecolor": "none", "edgecolor": _HATCH, "hatch": "/////", "linewidth": 0}
        axes.add_collection(PatchCollection(cells, **style))


def _label_source(axes: Axes, labels: Sequence[str], layout: Layout) -> None:
    every = layout.source_every
    centers = [index + 0.5 for index in range(0, len(labels), every)]
    axes.set_xticks(centers, labels[::every], fontsize=layout.source_font)
    long = [label for label in axes.get_xticklabels() if len(label.get_text()) > 1]
    # A few long labels among single characters must not be slanted over their neighbors.
    angle = SLANT if 2 * len(long) > len(centers) else 90
    for label in long:
        label.set(rotation=angle, ha="right", va="center", rotation_mode="anchor")


def _label_target(axes: Axes, labels: Sequence[str], layout: Layout) -> None:
    every = layout.target_every
    centers = [index + 0.5 for index in range(0, len(labels), every)]
    axes.set_yticks(centers, labels[::every], fontsize=layout.target_font)


def _draw_scale(figure: Figure, cells: ScalarMappable, layout: Layout) -> None:
    width, height = layout.size
    scale_height = min(layout.height, 2.0)
    left = (layout.columns - 1) * layout.column_step + layout.width + 0.15
    box = left / width, 1 - scale_height / height, 0.11 / width, scale_height / height
    bar = figure.colorbar(cells, cax=figure.add_axes(box), ticks=[0, 0.5, 1])
    bar.outline.set(color=_PALE, linewidth=0.6)
    bar.ax.tick_params(labelsize=7.5, length=2, width=0.6, color=_PALE, labelcolor=_INK)
    bar.set_label("weight", fontsize=8, color=_PALE)


def _draw_title(axes: Axes, title: str, layout: Layout, *, above_panel_title: bool) -> None:
    lines = textwrap.wrap(title, max(40, int(layout.size[0] * 72 / 6.2)))
    axes.annotate(
        "\n".join(lines),
        (0, 1),
        xytext=(0, 25 if above_panel_title else 8),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=11,
        color=_INK,
    )


def render_figure(figure: Figure, suffix: str, dpi: float = 0) -> bytes:
    """Return the figure as the bytes of a file with this suffix, with at least `dpi` pixels per
    inch."""
    # Without a date, so that files are reproducible.
    metadata = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[suffix]
    picture = io.BytesIO()
    figure.savefig(
        picture,
        format=suffix[1:],
        dpi=max(dpi, _DPI),
        bbox_inches="tight",
        pad_inches=0.12,
        metadata=metadata,
    )
    return picture.getvalue()
