"""Positions figure, and pictures of masks and biases (regard.attention.picture) as .png and .pdf.

The positions figure has the matrix of every positional encoding of a model, positions down,
dimensions across.

    added       P[i]: the vector added at position i               sinusoidal, learned
    rotary      cosine and sine of the angle of each pair at i     pairs across
    bias        one panel per head: queries down, keys across      ALiBi, relative biases

Source: lectures, D.1, D.2.
"""

from pathlib import Path

import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from regard.attention.biases import Bias, DistanceBias
from regard.attention.picture import HATCHED, Picture
from regard.attention.positions import Positions
from regard.errors import UserError
from regard.layers.positions.base import PositionalEncoding
from regard.look.figures.alignment import plot_style
from regard.look.figures.labels import escape_missing, families_for
from regard.look.figures.matrix import MASKED, PALE, Matrix, Sheet
from regard.look.figures.output import check_path
from regard.look.figures.results import write_picture

_LENGTH = 100
"""Number of positions of encodings without a largest one."""
_MOST_HEADS = 16
_COLUMNS = 4
_GAP = 0.45


def plot_positions(model: nn.Module, path: str | Path, *, overwrite: bool = False) -> Path:
    """Plot the positional encodings of a model.

    Raises: UserError if the model has none, for another suffix, an existing file (unless
            overwrite), or if the folder does not exist.
    """
    matrices = [
        matrix for name, module in model.named_modules() for matrix in _matrices(name, module)
    ]
    if not matrices:
        raise UserError(
            f"view 'positions' requires a positional encoding, which this {type(model).__name__} "
            f"does not have"
        )
    sheet, left, top, bottom = Sheet(), _GAP, 0.1, 0.0
    for number, matrix in enumerate(matrices):
        if number and number % _COLUMNS == 0:
            left, top = _GAP, bottom + _GAP / 2
        right, end = sheet.add(matrix, left, top)
        left, bottom = right + _GAP, max(bottom, end)
    return sheet.save(Path(path), overwrite=overwrite)


def plot_picture(picture: Picture, path: Path, *, overwrite: bool = False) -> Path:
    """Plot the panels of a picture of a mask, bias or matrix, with its colors.

    Raises: UserError for another suffix, an existing file (unless overwrite), or if the folder does
            not exist.
    """
    check_path(path, overwrite)
    panels, scale = picture.panels, picture.scale
    colors = [MASKED if color == HATCHED else color for color in scale.colors]
    columns = min(len(panels), _COLUMNS)
    rows = -(-len(panels) // columns)
    left_out = (
        f"the first {len(panels)} of {len(panels) + picture.left_out}" if picture.left_out else ""
    )
    pairs = panels[0].pairs
    note = ", ".join(
        filter(None, (left_out, f"a cell is {pairs} x {pairs} pairs" if pairs > 1 else ""))
    )
    titles = [picture.heading, note, *(panel.title for panel in panels)]
    families = families_for(titles)
    with plot_style(families):
        high = max(min(2.0 * panel.num_rows / panel.num_columns, 2.0) for panel in panels)
        figure = Figure(
            figsize=(max(3.2, 2.4 * columns), (high + 0.6) * rows + 0.7), layout="constrained"
        )
        grid = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        for axes, panel in zip(grid, panels, strict=False):
            extent = (
                -0.5,
                len(panel.levels[0]) * panel.pairs - 0.5,
                len(panel.levels) * panel.pairs - 0.5,
                -0.5,
            )
            style = {"cmap": ListedColormap(colors), "vmin": -0.5, "vmax": len(colors) - 0.5}
            axes.imshow(panel.levels, interpolation="nearest", extent=extent, **style)
            axes.set(xlim=(-0.5, panel.num_columns - 0.5), ylim=(panel.num_rows - 0.5, -0.5))
            axes.set_xlabel(panel.names[1], fontsize=8)
            axes.set_ylabel(panel.names[0], fontsize=8)
            axes.set_title(escape_missing(panel.title, families), fontsize=8)
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
            axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
            axes.yaxis.set_major_formatter(lambda row, _, first=panel.first: f"{row + first:g}")
            axes.tick_params(labelsize=7)
        handles = [
            Patch(facecolor=colors[level], edgecolor=PALE, label=text)
            for level, text in scale.legend
            if text
        ]
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=len(handles),
            fontsize=7,
            frameon=False,
        )
        lines = "\n".join(
            escape_missing(line, families) for line in (picture.heading, note) if line
        )
        figure.suptitle(lines, fontsize=9)
        return write_picture(figure, path, overwrite=overwrite)


def _matrices(name: str, module: nn.Module) -> list[Matrix]:
    """Return the matrices of a module; none if it is no positional encoding."""
    match module:
        case PositionalEncoding():
            try:
                numbers = module.matrix(_LENGTH if module.max_length is None else module.max_length)
            except ValueError:  # no effect, or a bias, which is a module of its own
                return []
            words = "cos and sin of each pair" if module.rotates else "position x dimension"
            return [_matrix(f"{name}: {type(module).__name__}, {words}", numbers)]
        case DistanceBias():
            heads = _of_heads(module)
            return [
                _matrix(f"{name}, head {head + 1}", numbers)
                for head, numbers in enumerate(heads[:_MOST_HEADS])
            ]
    return []


def _of_heads(bias: Bias) -> Tensor:
    """Return the bias of 100 queries and keys, (head, query, key)."""
    positions = Positions(_LENGTH, _LENGTH, torch.device("cpu"))
    tensor = bias.materialize(torch.zeros(1, 1, _LENGTH, 1), positions)
    return tensor.reshape(-1, _LENGTH, _LENGTH)


def _matrix(title: str, numbers: Tensor) -> Matrix:
    array = numbers.detach().float().cpu().numpy()
    labels = [str(position) for position in range(len(array))]
    return Matrix(
        title=title, numbers=array, rows=labels, columns=[str(i) for i in range(array.shape[1])]
    )
