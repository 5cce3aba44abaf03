"""Rows of matrices: heat maps of signed numbers or of weights, with numbers in cells with room.

    blue: above zero    orange: below zero    white: zero    gray: masked (-inf), or not a number

Each matrix is scaled to its own largest magnitude, which its caption states; weights are scaled
from 0 to 1. A matrix of more rows or columns than fit is reduced: a cell then stands for k rows or
columns, and has the number of largest magnitude among them; the caption says so. With `most`, a
matrix shows its first rows and columns, an ellipsis and its last ones instead, with their numbers.
"""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from regard.look.figures.canvas import (
    GRID,
    INK,
    PALE,
    draw_weight_scale,
    signed_colors,
    weight_colors,
)
from regard.look.figures.labels import readable, width_em
from regard.look.sample import format_score

MASKED = "#d9dee4"
"""Color of cells without a number."""
_POINT = 1 / 72
_NUMBER_WIDTH, _CELL = 0.3, 0.19
"""Width in inches of a cell with a number, and height of any cell and width of others."""
_NUMBER_FONT, _LABEL_FONT, _TITLE_FONT, _CAPTION_FONT = 5.6, 7.0, 8.0, 6.0
_MAX_COLUMNS, _MAX_ROWS = 16, 24
"""Largest number of columns and rows of a matrix whose cells have numbers."""
_TITLE_HEIGHT, _CAPTION_HEIGHT = 0.17, 0.14
_GAP, _EDGE, _NAME = 0.35, 0.12, 0.16
SCALE_WIDTH = 0.9
"""Width of the color scale, its labels and the edges."""


@dataclass(frozen=True, eq=False)
class Matrix:
    """Matrix with a title and the labels of its rows and columns, if they are drawn."""

    title: str
    numbers: NDArray[np.floating[Any]]
    """(rows, columns); -inf and NaN are drawn gray."""
    _: KW_ONLY
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    names: tuple[str, str] = ("", "")
    """Names of the axes of rows and columns, if they are drawn."""
    is_weights: bool = False
    """True: scaled from 0 to 1."""
    is_signed: bool = True
    """False: scaled from 0 to the largest."""
    bound: float | None = None
    """Magnitude with the darkest color; default: the largest of this matrix."""
    cell: tuple[float, float] | None = None
    """Width and height of a cell in inches, without numbers; None: with numbers, if they fit."""
    most: tuple[int, int] | None = None
    """Largest number of rows and columns: of others only the last is drawn, behind an ellipsis."""
    about: str | None = None
    """Caption in place of shape and scale."""
    room: float = 0.0
    """Least width in inches of its column, for columns of several rows."""

    @property
    def indices(self) -> tuple[list[int], list[int]]:
        """Indices of the drawn rows and columns; -1: an ellipsis."""
        sizes = self.numbers.shape
        most = sizes if self.most is None else self.most
        rows, columns = (_indices(size, limit) for size, limit in zip(sizes, most, strict=True))
        return rows, columns

    @property
    def shape(self) -> tuple[int, int]:
        """Number of drawn rows and columns."""
        rows, columns = self.indices
        return len(rows), len(columns)

    @property
    def has_numbers(self) -> bool:
        rows, columns = self.shape
        return self.cell is None and rows <= _MAX_ROWS and columns <= _MAX_COLUMNS

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of its cells in inches."""
        rows, columns = self.shape
        width, height = fit_cell(self.shape, 2.6) if self.cell is None else self.cell
        if self.cell is None and rows <= _MAX_ROWS:
            height = _CELL  # the same whether or not the cells have numbers
        return columns * (_NUMBER_WIDTH if self.has_numbers else width), rows * height

    @property
    def caption(self) -> str:
        """Shape and scale, and how the matrix is reduced."""
        if self.about is not None:
            return self.about
        parts = [" x ".join(f"{size:,}" for size in self.numbers.shape)]
        for name, indices in zip(("rows", "columns"), self.indices, strict=True):
            if -1 in indices:
                parts.append(f"{name} 1 to {len(indices) - 2} and {indices[-1] + 1:,}")
        if not self.is_weights and not self.has_numbers:
            finite = np.abs(self.numbers[np.isfinite(self.numbers)])
            sign = "\u00b1" if self.is_signed else ""
            parts.append(f"up to {sign}{finite.max(initial=0):.3g}")
        _, rows, columns = reduce_cells(self.numbers)
        if self.most is None and (rows, columns) != (1, 1):
            parts.append(f"a cell: largest of {rows} x {columns}")
        return ", ".join(parts)

    @property
    def head(self) -> float:
        """Height above its cells: title, caption, name of the axis and labels of columns."""
        labels = _width(self.columns, _LABEL_FONT) + 0.04 if self.columns else 0.0
        title = _TITLE_HEIGHT if self.title else 0.0
        caption = _CAPTION_HEIGHT if self.caption else 0.0
        return title + caption + labels + (_NAME if self.names[1] else 0.0)

    @property
    def margin(self) -> float:
        """Width to the left of its cells: name of the axis and labels of rows."""
        labels = _width(self.rows, _LABEL_FONT) + 0.06 if self.rows else 0.0
        return labels + (_NAME if self.names[0] else 0.0)


def _indices(size: int, most: int) -> list[int]:
    """Return the indices of `most` of `size` rows: the first ones, -1 and the last."""
    return list(range(size)) if size <= most else [*range(most - 2), -1, size - 1]


def fit_cell(shape: tuple[int, ...], side: float) -> tuple[float, float]:
    """Return the width and height of cells of a matrix without numbers, for a largest side."""
    rows, columns = shape
    return min(_CELL, side / columns), min(_CELL, side / rows)


def plot_matrices(
    figure: Figure,
    rows: Sequence[tuple[str, Sequence[Matrix]]],
    *,
    title: str = "",
    about: str = "",
    note: str = "",
    width: float = math.inf,
    has_scale: bool = False,
) -> None:
    """Plot rows of matrices, each with a heading, from left to right.

    title, about: lines above; note: line below.
    width:        in inches, beyond which a row continues below.
    has_scale:    draw the color scale of weights beside the first row.
    """
    texts: list[tuple[float, float, str, float, str]] = []
    top, right, scale = _EDGE, 0.0, (0.0, 0.0)
    reserve = SCALE_WIDTH if has_scale else 0.2
    characters = max(40, int(min(width, 100.0) / _width("x", 9.0)))
    for line in textwrap.wrap(title, characters):
        texts.append((_EDGE, top, line, 9.0, INK))
        top += 0.17
    texts.append((_EDGE, top, about, _LABEL_FONT, PALE))
    top += 0.2 if about else 0.0
    placed: list[tuple[Matrix, float, float]] = []
    for heading, matrices in rows:
        if placed:
            top += 0.25 if heading or matrices[0].title else 0.12
        if heading:
            texts.append((_EDGE, top, heading, _TITLE_FONT, "#0c56a5"))
            top += 0.2
        # The cells of a row begin at one height.
        head = max(matrix.head for matrix in matrices)
        left, bottom = _EDGE, top + head
        for matrix in matrices:
            block = max(
                matrix.size[0],
                _width(matrix.title, _TITLE_FONT),
                _width(matrix.caption, _CAPTION_FONT),
                matrix.room,
            )
            if left > _EDGE and left + matrix.margin + block + reserve > width:
                left, top = _EDGE, bottom + 0.2
            left += matrix.margin
            cells = top + head
            texts.append((left, cells - matrix.head, matrix.title, _TITLE_FONT, INK))
            caption_top = cells - matrix.head + (_TITLE_HEIGHT if matrix.title else 0.0)
            texts.append((left, caption_top, matrix.caption, _CAPTION_FONT, PALE))
            placed.append((matrix, left, cells))
            bottom = max(bottom, cells + matrix.size[1])
            if top + head == placed[0][2]:
                scale = left + matrix.size[0] + 0.15, cells
            right = max(right, left + block)
            left += block + _GAP
        top = bottom
    top += 0.25
    texts.append((_EDGE, top, note, _LABEL_FONT, PALE))
    right = max(right, *(left + _width(text, font) for left, _, text, font, _ in texts))
    wide, high = right + 0.1, top + (0.3 if note else 0.0)

    def box(
        left: float, top: float, size: tuple[float, float]
    ) -> tuple[float, float, float, float]:
        return left / wide, 1 - (top + size[1]) / high, size[0] / wide, size[1] / high

    figure.set_size_inches(wide, high)
    for left, y, text, font, color in texts:
        style = {"fontsize": font, "color": color, "va": "top", "ha": "left"}
        figure.text(left / wide, 1 - y / high, text, **style)
    for matrix, left, y in placed:
        _draw_cells(figure.add_axes(box(left, y, matrix.size)), matrix)
    if has_scale:
        height = min(2.0, placed[0][0].size[1])
        draw_weight_scale(figure, box(*scale, (0.11, height)))


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
    rows, columns = (-(-size // 200) for size in numbers.shape)
    beyond = (0, -numbers.shape[0] % rows), (0, -numbers.shape[1] % columns)
    padded = np.pad(np.where(np.isfinite(numbers), numbers, np.nan), beyond, constant_values=np.nan)
    blocks = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    parts = blocks.transpose(0, 2, 1, 3).reshape(*blocks.shape[::2], rows * columns)
    largest = np.nan_to_num(np.abs(parts), nan=-1.0).argmax(-1)
    return np.take_along_axis(parts, largest[..., None], -1)[..., 0], rows, columns


def _width(text: str | Sequence[str], font: float) -> float:
    """Return the width of a text, or of the longest of several, in inches."""
    texts = [text] if isinstance(text, str) else text
    return max(width_em(one) for one in texts) * font * _POINT


def ink_on(color: Sequence[float]) -> str:
    """Return the color of a text on a color: red, green and blue."""
    return INK if np.dot(color[:3], (0.3, 0.59, 0.11)) > 0.55 else "white"


def _draw_cells(axes: Axes, matrix: Matrix) -> None:
    shown_rows, shown_columns = (np.array(indices) for indices in matrix.indices)
    numbers = matrix.numbers[np.ix_(shown_rows, shown_columns)]
    is_left_out = (shown_rows < 0)[:, None] | (shown_columns < 0)
    cells, per_row, per_column = reduce_cells(np.where(is_left_out, np.nan, numbers))
    (rows, columns), (width, height) = matrix.shape, matrix.size
    largest = float(np.abs(cells[np.isfinite(cells)]).max(initial=0))
    bound = 1.0 if matrix.is_weights else matrix.bound or largest or 1.0
    if matrix.is_weights or not matrix.is_signed:
        colors, low = weight_colors(), 0.0
    else:
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
    place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": _NUMBER_FONT}
    for i, j in np.argwhere(is_left_out):
        axes.add_patch(Rectangle((j, i), 1, 1, color="white"))
        axes.text(j + 0.5, i + 0.5, "...", color=PALE, **place)
    if matrix.has_numbers:
        for i, j in np.argwhere(~is_left_out):
            number = float(numbers[i, j]) + 0.0  # -0, the weight of a masked pair, becomes 0
            cell = colors((number - low) / (bound - low)) if math.isfinite(number) else (1, 1, 1)
            text = format_score(number) if matrix.is_weights else number_text(number)
            color = ink_on(cell)
            axes.text(j + 0.5, i + 0.5, text, color=color, **place)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=2, colors=INK, labelsize=_LABEL_FONT)
    down, across = matrix.names
    style = {"fontsize": _LABEL_FONT, "color": PALE, "labelpad": 2}
    axes.set_ylabel(down, **style)
    axes.set_xlabel(across, **style)
    axes.xaxis.set_label_position("top")
    room = 1.25 * _LABEL_FONT * _POINT
    if matrix.rows:
        labeled = np.arange(0, rows, math.ceil(room / (height / rows)))
        labels = ["..." if i < 0 else matrix.rows[i] for i in shown_rows[labeled]]
        axes.set_yticks(labeled + 0.5, labels)
    if matrix.columns:
        labeled = np.arange(0, columns, math.ceil(room / (width / columns)))
        labels = ["..." if j < 0 else matrix.columns[j] for j in shown_columns[labeled]]
        axes.set_xticks(labeled + 0.5, labels, rotation=90)
