"""Rows of matrices: heat maps of signed numbers or of weights, with numbers in cells with room.

    blue: above zero    orange: below zero    white: zero    gray: masked (-inf), or not a number

Each matrix is scaled to its own largest magnitude, which its caption states; weights are scaled
from 0 to 1. A matrix of more rows or columns than fit is reduced: a cell then stands for k rows or
columns, and has the number of largest magnitude among them; the caption says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from regard.look.figures.canvas import (
    GRID,
    INK,
    PALE,
    open_figure,
    signed_colors,
    weight_colors,
)
from regard.look.figures.labels import readable, width_em
from regard.look.sample import format_score

MASKED = "#d9dee4"
"""Color of cells without a number."""
_POINT = 1 / 72
_NUMBER_WIDTH, _CELL = 0.34, 0.19
"""Width in inches of a cell with a number, and height of any cell and width of others."""
_NUMBER_FONT, _LABEL_FONT, _TITLE_FONT, _CAPTION_FONT = 5.6, 7.0, 8.0, 6.0
_MAX_COLUMNS, _MAX_ROWS = 16, 24
"""Largest number of columns and rows of a matrix whose cells have numbers."""
_SIDE = 2.6
"""Largest side of a matrix without numbers."""
_MAX_CELLS = 200
"""Largest number of cells per side."""
_TITLE_HEIGHT, _CAPTION_HEIGHT = 0.17, 0.14
_GAP, _EDGE = 0.35, 0.12


@dataclass(frozen=True, kw_only=True, eq=False)
class Matrix:
    """Matrix with a title and the labels of its rows and columns, if they are drawn."""

    title: str
    numbers: NDArray[np.floating[Any]]
    """(rows, columns); -inf and NaN are drawn gray."""
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    is_weights: bool = False
    """True: scaled from 0 to 1."""
    bound: float | None = None
    """Magnitude with the darkest color; default: the largest of this matrix."""
    side: float | None = None
    """Largest side in inches, without numbers in the cells; None: cells have numbers if they can."""

    @property
    def has_numbers(self) -> bool:
        """True if its cells have numbers."""
        rows, columns = self.numbers.shape
        return self.side is None and rows <= _MAX_ROWS and columns <= _MAX_COLUMNS

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of its cells in inches."""
        rows, columns = self.numbers.shape
        side = self.side or _SIDE
        if self.side is None and rows <= _MAX_ROWS:
            height = rows * _CELL  # the same whether or not the cells have numbers
        else:
            height = min(side, rows * _CELL)
        if self.has_numbers:
            return columns * _NUMBER_WIDTH, height
        return min(side, columns * _CELL), height

    @property
    def caption(self) -> str:
        """Shape and scale, and how the matrix is reduced."""
        parts = [" x ".join(f"{size:,}" for size in self.numbers.shape)]
        if not self.is_weights and not self.has_numbers:
            finite = np.abs(self.numbers[np.isfinite(self.numbers)])
            parts.append(f"up to \u00b1{finite.max(initial=0):.3g}")
        _, rows, columns = reduce_cells(self.numbers)
        if (rows, columns) != (1, 1):
            parts.append(f"a cell: largest of {rows} x {columns}")
        return ", ".join(parts)

    @property
    def head(self) -> float:
        """Height above its cells: title, caption and vertical labels of columns."""
        labels = _width(self.columns, _LABEL_FONT) + 0.04 if self.columns else 0.0
        return _TITLE_HEIGHT + _CAPTION_HEIGHT + labels


class _Placed(NamedTuple):
    matrix: Matrix
    left: float
    top: float
    """Upper end of its cells."""


def plot_matrices(
    rows: Sequence[tuple[str, Sequence[Matrix]]],
    path: Path,
    *,
    title: str = "",
    about: str = "",
    note: str = "",
    overwrite: bool = False,
) -> None:
    """Plot rows of matrices, each with a heading, from left to right.

    title, about: lines above; note: line below.
    """
    texts = [(_EDGE, 0.08, title, 9.0, INK), (_EDGE, 0.26, about, _LABEL_FONT, PALE)]
    placed: list[_Placed] = []
    top, right = 0.5 if title else _EDGE, 0.0
    for heading, matrices in rows:
        if heading:
            texts.append((_EDGE, top, heading, _TITLE_FONT, "#0c56a5"))
            top += 0.2
        # The cells of a row begin at one height.
        cells = top + max(matrix.head for matrix in matrices)
        left, bottom = _EDGE, cells
        for matrix in matrices:
            left += _width(matrix.rows, _LABEL_FONT) + 0.06 if matrix.rows else 0.0
            start, (width, height) = cells - matrix.head, matrix.size
            texts.append((left, start, matrix.title, _TITLE_FONT, INK))
            texts.append((left, start + _TITLE_HEIGHT, matrix.caption, _CAPTION_FONT, PALE))
            placed.append(_Placed(matrix, left, cells))
            left += max(
                width,
                _width([matrix.title], _TITLE_FONT),
                _width([matrix.caption], _CAPTION_FONT),
            )
            left, right, bottom = left + _GAP, max(right, left), max(bottom, cells + height)
        top = bottom + 0.25
    texts.append((_EDGE, top, note, _LABEL_FONT, PALE))
    for left, _, text, font, _ in texts:
        right = max(right, left + _width([text], font))
    wide, high = right + 0.1, top + (0.3 if note else 0.0)
    with open_figure(path, (wide, high), overwrite=overwrite) as figure:
        for left, y, text, font, color in texts:
            x = left / wide
            figure.text(x, 1 - y / high, text, fontsize=font, color=color, va="top", ha="left")
        for matrix, left, y in placed:
            width, height = matrix.size
            box = left / wide, 1 - (y + height) / high, width / wide, height / high
            _draw_cells(figure.add_axes(box), matrix)


def labels_of(labels: Sequence[str]) -> list[str]:
    """Return readable labels, truncated to 14 characters."""
    return [readable(label, max_length=14) for label in labels]


def number_text(number: float) -> str:
    """Return a number as in a cell: two decimals, or two significant digits of large ones."""
    if math.isnan(number):
        return ""
    if math.isinf(number):
        return "-\u221e" if number < 0 else "\u221e"
    text = f"{number:.2f}" if abs(number) < 99.995 else f"{number:.2g}"
    return text.removeprefix("-") if float(text) == 0 else text


def reduce_cells(numbers: NDArray[np.floating[Any]]) -> tuple[NDArray[np.floating[Any]], int, int]:
    """Return at most 200 cells per side, and the numbers of rows and of columns per cell.

    A cell has the finite number of largest magnitude; one without finite numbers is NaN.
    """
    rows, columns = (-(-size // _MAX_CELLS) for size in numbers.shape)
    beyond = (0, -numbers.shape[0] % rows), (0, -numbers.shape[1] % columns)
    padded = np.pad(np.where(np.isfinite(numbers), numbers, np.nan), beyond, constant_values=np.nan)
    blocks = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    parts = blocks.transpose(0, 2, 1, 3).reshape(*blocks.shape[::2], rows * columns)
    largest = np.nan_to_num(np.abs(parts), nan=-1.0).argmax(-1)
    return np.take_along_axis(parts, largest[..., None], -1)[..., 0], rows, columns


def _width(texts: Sequence[str], font: float) -> float:
    """Return the width of the longest text in inches."""
    return max(width_em(text) for text in texts) * font * _POINT


def _draw_cells(axes: Axes, matrix: Matrix) -> None:
    cells, per_row, per_column = reduce_cells(matrix.numbers)
    (rows, columns), (width, height) = matrix.numbers.shape, matrix.size
    if matrix.is_weights:
        colors, low, bound = weight_colors(), 0.0, 1.0
    else:
        largest = float(np.abs(cells[np.isfinite(cells)]).max(initial=0))
        bound = matrix.bound or largest or 1.0
        colors, low = signed_colors(), -bound
    axes.set_facecolor(MASKED)
    extent = (0, cells.shape[1] * per_column, cells.shape[0] * per_row, 0)
    shown = np.ma.masked_invalid(cells)
    style = {"cmap": colors, "vmin": low, "vmax": bound, "interpolation": "nearest"}
    axes.imshow(shown, extent=extent, aspect="auto", **style)
    axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
    axes.spines[:].set(color=PALE, linewidth=0.5)
    if min(width / columns, height / rows) > 0.05:
        axes.vlines(range(1, columns), 0, rows, colors=GRID, linewidth=0.3)
        axes.hlines(range(1, rows), 0, columns, colors=GRID, linewidth=0.3)
    if matrix.has_numbers:
        for i, j in np.ndindex(rows, columns):
            number = float(matrix.numbers[i, j])
            red, green, blue, _ = colors((number - low) / (bound - low))
            is_dark = math.isfinite(number) and 0.3 * red + 0.59 * green + 0.11 * blue <= 0.55
            text = format_score(number) if matrix.is_weights else number_text(number)
            color = "white" if is_dark else INK
            place = {"ha": "center", "va": "center", "fontsize": _NUMBER_FONT}
            axes.text(j + 0.5, i + 0.5, text, color=color, **place)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=2, colors=INK, labelsize=_LABEL_FONT)
    room = (1.25 if matrix.side is None else 2.0) * _LABEL_FONT * _POINT
    if matrix.rows:
        shown_rows = range(0, rows, math.ceil(room / (height / rows)))
        axes.set_yticks([i + 0.5 for i in shown_rows], [matrix.rows[i] for i in shown_rows])
    if matrix.columns:
        shown_columns = range(0, columns, math.ceil(room / (width / columns)))
        labels = [matrix.columns[i] for i in shown_columns]
        axes.set_xticks([i + 0.5 for i in shown_columns], labels, rotation=90)
