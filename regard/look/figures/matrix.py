"""Matrices on a sheet: heat maps of signed numbers or of weights, with labels, and numbers in cells
that have room.

    blue: above zero        orange: below zero        white: zero        gray: masked (-inf), or not
          a number

Each matrix is scaled to its own largest magnitude, which its caption states; weights are scaled
from 0 to 1. A matrix of more rows or columns than fit is reduced: a cell then stands for k rows or
columns, and has the number of largest magnitude among them; the caption says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from regard.look.figures.alignment import plot_style, render_figure, weight_colors
from regard.look.figures.labels import (
    escape_missing,
    families_for,
    isolate_sides,
    readable,
    width_em,
)
from regard.look.figures.output import check_path
from regard.look.sample import format_score
from regard.system.writing import write_atomically

INK, PALE = "#1f2933", "#66727f"
MASKED = "#d9dee4"
"""Color of cells without a number."""
_BELOW = "#fcdbc1 #f1b88a #e39652 #c57a35 #a56019 #814a11 #5e340a #3e2104"
"""White to dark orange, as in the viewer."""
_GRID = "#e6ebf0"
_POINT = 1 / 72
_NUMBER_CELL = 0.34, 0.19
"""Width and height in inches of a cell with a number."""
_NUMBER_FONT, _LABEL_FONT, _TITLE_FONT = 5.6, 7.0, 8.0
_MOST_NUMBERS = 16, 24
"""Largest number of columns and rows of a matrix whose cells have numbers."""
_SIDE, _CELL = 2.6, 0.19
"""Largest side of a matrix without numbers, and of its cells."""
_MOST_CELLS = 200
"""Largest number of cells per side."""
_TITLE_HEIGHT, _CAPTION_HEIGHT = 0.17, 0.14


@dataclass(frozen=True, kw_only=True, eq=False)
class Matrix:
    """Matrix with a title and the labels of its rows and columns; labels that are empty are not
    drawn."""

    title: str
    numbers: NDArray[np.floating[Any]]
    """(rows, columns); -inf and NaN are drawn gray."""
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    is_weights: bool = False
    """True: scaled from 0 to 1."""
    bound: float | None = None
    """Magnitude with the darkest color, the same for several matrices; default: the largest of this
    one."""

    @property
    def has_numbers(self) -> bool:
        """True if its cells are large enough for numbers."""
        rows, columns = self.numbers.shape
        return columns <= _MOST_NUMBERS[0] and rows <= _MOST_NUMBERS[1]

    def size(self, rows: int | None = None, *, numbers: bool | None = None) -> tuple[float, float]:
        """Return width and height of the cells in inches; rows, numbers: those of a matrix that it
        is aligned with."""
        count, columns = (self.numbers.shape[0] if rows is None else rows), self.numbers.shape[1]
        if self.has_numbers if numbers is None else numbers:
            return columns * _NUMBER_CELL[0], count * _NUMBER_CELL[1]
        return min(_SIDE, columns * _CELL), min(_SIDE, count * _CELL)

    @property
    def label_width(self) -> float:
        """Width of the labels of rows."""
        return (
            max((width_em(label) for label in self.rows), default=0.0) * _LABEL_FONT * _POINT + 0.06
        )

    @property
    def label_height(self) -> float:
        """Height of the labels of columns, which are vertical."""
        return (
            max((width_em(label) for label in self.columns), default=0.0) * _LABEL_FONT * _POINT
            + 0.04
        )

    @property
    def shape_name(self) -> str:
        """The shape, such as "5 x 16"."""
        return " x ".join(f"{size:,}" for size in self.numbers.shape)


class Sheet:
    """Figure of matrices, texts and arrows, placed in inches from the top left corner."""

    def __init__(self) -> None:
        self._matrices: list[tuple[Matrix, float, float, float, float]] = []
        self._texts: list[tuple[float, float, str, dict[str, Any]]] = []
        self._arrows: list[tuple[float, float, float, float]] = []
        self.width = self.height = 0.0

    def add(
        self, matrix: Matrix, left: float, top: float, size: tuple[float, float] | None = None
    ) -> tuple[float, float]:
        """Place a matrix: its title at `top`, its cells from `left`. Return its right and its lower
        end.

        size: of its cells; default: `matrix.size()`.
        """
        width, height = matrix.size() if size is None else size
        cells = (
            top + _TITLE_HEIGHT + _CAPTION_HEIGHT + (matrix.label_height if matrix.columns else 0.0)
        )
        self._matrices.append((matrix, left, cells, width, height))
        self.text(left, top, matrix.title, size=_TITLE_FONT, weight="bold")
        self.text(left, top + _TITLE_HEIGHT, _caption(matrix), size=6.0, color=PALE)
        right = left + max(
            width,
            *(_width(*pair) for pair in ((matrix.title, _TITLE_FONT), (_caption(matrix), 6.0))),
        )
        self._grow(right, cells + height)
        return right, cells + height

    def head(self, matrix: Matrix) -> float:
        """Return the height above the cells of a matrix: title, caption and labels of columns."""
        return _TITLE_HEIGHT + _CAPTION_HEIGHT + (matrix.label_height if matrix.columns else 0.0)

    def text(
        self, left: float, top: float, text: str, *, size: float = _LABEL_FONT, **style: Any
    ) -> None:
        """Place a line of text by its upper left corner."""
        self._texts.append((left, top, text, {"fontsize": size, "color": INK, **style}))
        self._grow(left + _width(text, size), top + 1.3 * size * _POINT)

    def arrow(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Draw an arrow between two points."""
        self._arrows.append((*start, *end))

    def save(self, path: Path, *, overwrite: bool = False) -> Path:
        """Write the figure.

        Raises: UserError for another suffix, an existing file (unless overwrite), or if the folder
                does not exist.
        """
        check_path(path, overwrite)
        labels = [
            label for matrix, *_ in self._matrices for label in (*matrix.rows, *matrix.columns)
        ]
        texts = [text for _, _, text, _ in self._texts]
        families = families_for([*labels, *texts])
        is_svg = path.suffix.lower() == ".svg"
        with plot_style(families):
            figure = Figure(figsize=(self.width + 0.1, self.height + 0.1))
            whole = figure.add_axes((0, 0, 1, 1))
            whole.set(xlim=(0, self.width + 0.1), ylim=(self.height + 0.1, 0))
            whole.set_axis_off()
            for x, y, text, style in self._texts:
                shown = text if is_svg else escape_missing(text, families)
                whole.text(x, y, isolate_sides(shown), va="top", ha="left", **style)
            for x0, y0, x1, y1 in self._arrows:
                arrow = {
                    "arrowstyle": "-|>",
                    "color": PALE,
                    "linewidth": 0.8,
                    "shrinkA": 0,
                    "shrinkB": 0,
                }
                whole.annotate("", (x1, y1), (x0, y0), arrowprops=arrow)
            wide, high = self.width + 0.1, self.height + 0.1
            for matrix, left, top, width, height in self._matrices:
                axes = figure.add_axes(
                    (left / wide, 1 - (top + height) / high, width / wide, height / high)
                )
                escape = (
                    (lambda label: label)
                    if is_svg
                    else (lambda label: escape_missing(label, families))
                )
                _draw_cells(axes, matrix, width, height, escape)
            picture = render_figure(figure, path.suffix.lower())
        write_atomically(path, picture, overwrite=overwrite)
        return path

    def _grow(self, right: float, bottom: float) -> None:
        self.width, self.height = max(self.width, right), max(self.height, bottom)


def signed_colors() -> LinearSegmentedColormap:
    """Return the color map of signed numbers: dark orange for -1, white for 0, dark blue for 1."""
    above = [weight_colors()(step / 8) for step in range(9)]
    return LinearSegmentedColormap.from_list("signed", [*_BELOW.split()[::-1], *above])


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
    rows, columns = (-(-size // _MOST_CELLS) for size in numbers.shape)
    if rows == columns == 1:
        return numbers, 1, 1
    beyond = [(0, -size % per) for size, per in zip(numbers.shape, (rows, columns), strict=True)]
    filled = np.pad(np.where(np.isfinite(numbers), numbers, 0.0), beyond)
    finite = np.pad(np.isfinite(numbers), beyond)
    blocks = [-(-size // per) for size, per in zip(numbers.shape, (rows, columns), strict=True)]

    def split(array: NDArray[Any]) -> NDArray[Any]:
        return (
            array.reshape(blocks[0], rows, blocks[1], columns)
            .transpose(0, 2, 1, 3)
            .reshape(*blocks, -1)
        )

    parts = split(filled)
    largest = np.take_along_axis(parts, np.abs(parts).argmax(-1)[..., None], -1)[..., 0]
    return np.where(split(finite).any(-1), largest, np.nan), rows, columns


def _caption(matrix: Matrix) -> str:
    """Return shape and scale of a matrix, and how it is reduced."""
    finite = np.abs(matrix.numbers[np.isfinite(matrix.numbers)])
    parts = [matrix.shape_name]
    if not matrix.is_weights and not matrix.has_numbers:
        parts.append(f"up to \u00b1{finite.max(initial=0):.3g}")
    _, rows, columns = reduce_cells(matrix.numbers)
    if (rows, columns) != (1, 1):
        parts.append(f"a cell: largest of {rows} x {columns}")
    return ", ".join(parts)


def _draw_cells(axes: Axes, matrix: Matrix, width: float, height: float, escape: Any) -> None:
    cells, per_row, per_column = reduce_cells(matrix.numbers)
    finite = np.isfinite(cells)
    bound = (
        1.0
        if matrix.is_weights
        else matrix.bound or float(np.abs(cells[finite]).max(initial=0)) or 1.0
    )
    colors = weight_colors() if matrix.is_weights else signed_colors()
    low = 0.0 if matrix.is_weights else -bound
    rows, columns = matrix.numbers.shape
    shown = np.ma.masked_where(~finite, cells)
    axes.set_facecolor(MASKED)
    extent = (0, cells.shape[1] * per_column, cells.shape[0] * per_row, 0)
    axes.imshow(
        shown,
        cmap=colors,
        vmin=low,
        vmax=bound,
        extent=extent,
        aspect="auto",
        interpolation="nearest",
    )
    axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
    axes.spines[:].set(color=PALE, linewidth=0.5)
    if width / columns > 0.05 and height / rows > 0.05:
        axes.vlines(range(1, columns), 0, rows, colors=_GRID, linewidth=0.3)
        axes.hlines(range(1, rows), 0, columns, colors=_GRID, linewidth=0.3)
    if width / columns >= _NUMBER_CELL[0] - 1e-9 and height / rows >= _NUMBER_CELL[1] - 1e-9:
        _write_numbers(axes, matrix, colors, low, bound)
    axes.tick_params(length=0, pad=2, colors=INK, labelsize=_LABEL_FONT)
    if matrix.rows:
        every = math.ceil(1.25 * _LABEL_FONT * _POINT / (height / rows))
        axes.set_yticks(
            [i + 0.5 for i in range(0, rows, every)],
            [escape(label) for label in matrix.rows[::every]],
        )
    if matrix.columns:
        every = math.ceil(1.25 * _LABEL_FONT * _POINT / (width / columns))
        places = [i + 0.5 for i in range(0, columns, every)]
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.set_xticks(places, [escape(label) for label in matrix.columns[::every]], rotation=90)


def _write_numbers(
    axes: Axes, matrix: Matrix, colors: LinearSegmentedColormap, low: float, bound: float
) -> None:
    to_text = format_score if matrix.is_weights else number_text
    for i, row in enumerate(matrix.numbers.tolist()):
        for j, number in enumerate(row):
            ink = INK
            if math.isfinite(number):
                red, green, blue, _ = colors((number - low) / (bound - low))
                ink = INK if 0.3 * red + 0.59 * green + 0.11 * blue > 0.55 else "white"
            style = {"ha": "center", "va": "center", "fontsize": _NUMBER_FONT, "color": ink}
            axes.text(j + 0.5, i + 0.5, to_text(number), **style)


def _width(text: str, size: float) -> float:
    return width_em(text) * size * _POINT
