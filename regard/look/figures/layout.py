"""Layout of a figure of panels: size of the cells, arrangement of the panels, and which labels
fit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from regard.look.figures.labels import width_em

SLANT = 60
"""Angle of source labels of more than one character, in degrees."""
TITLE_FONT = 9.0
"""Font size of a panel's title, in points."""

_WIDTH = 18 / 2.54
"""Default width of a figure: that of a page."""
_MAX_WIDTH, _MAX_HEIGHT = 16.0, 40.0
"""Largest width of a single panel, and largest height."""
_MARGIN, _SCALE = 0.45, 0.75
"""Width of the axis title and of the edges, and of the color scale."""
_CELL, _SMALL_CELL = 0.24, 0.125
_GAP, _TITLE_HEIGHT = 0.25, 0.30
_MIN_FONT, _MAX_FONT = 6.0, 9.5
_POINT = 1 / 72


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Grid of panels of equal size; lengths in inches, fonts in points."""

    columns: int
    rows: int
    width: float
    """Width of a panel's cells."""
    height: float
    """Height of a panel's cells."""
    column_step: float
    """Distance between the left edges of adjacent panels."""
    row_step: float
    """Distance between the top edges of adjacent panels."""
    source_font: float
    target_font: float
    source_every: int
    """Label every k-th source token; 1 if there is room for all labels."""
    target_every: int

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of all panels."""
        return self.columns * self.column_step, self.rows * self.row_step

    def box(self, number: int) -> tuple[float, float, float, float]:
        """Return left, bottom, width, height of a panel as fractions of `size`, row by row."""
        row, column = divmod(number, self.columns)
        bottom = self.size[1] - row * self.row_step - self.height
        return self._fractions(column * self.column_step, bottom, self.width, self.height)

    def scale_box(self) -> tuple[float, float, float, float]:
        """Return the box of the color scale, beside the last panel of the first row."""
        left = (self.columns - 1) * self.column_step + self.width + 0.15
        height = min(self.height, 2.0)
        return self._fractions(left, self.size[1] - height, 0.11, height)

    def _fractions(
        self, left: float, bottom: float, width: float, height: float
    ) -> tuple[float, float, float, float]:
        whole_width, whole_height = self.size
        return left / whole_width, bottom / whole_height, width / whole_width, height / whole_height


def lay_out(
    titles: Sequence[str],
    *,
    source: Sequence[str],
    target: Sequence[str],
    width: float | None = None,
) -> Layout:
    """Return the layout of one panel per title, of len(target) rows and len(source) columns.

    Panels are side by side as long as labels are readable, else in several rows of equal length.
    Cells shrink to the width of the figure; if labels do not fit, only some are shown.

    width: of the figure with its labels and scale, at most; default: 18 cm, and more if one panel
           needs it.
    """
    title_width = max(width_em(title) for title in titles) * TITLE_FONT * _POINT

    def extent(columns: int, cells: float) -> float:
        """Return the width of a row of panels with the scale, for a width of a panel's cells."""
        return (columns - 1) * (max(cells, title_width) + _GAP) + max(cells + _SCALE, title_width)

    least = len(source) * _SMALL_CELL
    left = max(width_em(label) for label in target) * _MAX_FONT * _POINT + _MARGIN
    room = (_WIDTH if width is None else width) - left
    if width is None:
        room = max(room, min(_MAX_WIDTH, extent(1, least)))
    fitting = [columns for columns in range(1, len(titles) + 1) if extent(columns, least) <= room]
    rows = math.ceil(len(titles) / max(fitting, default=1))
    columns = math.ceil(len(titles) / rows)
    cells = (room - (columns - 1) * _GAP - _SCALE) / columns
    if cells <= title_width:  # the titles keep the panels apart
        cells = room - (columns - 1) * (title_width + _GAP) - _SCALE
    cell_width = min(_CELL, max(cells / len(source), _POINT / 4))
    cell_height = min(max(cell_width, _SMALL_CELL), _MAX_HEIGHT / rows / len(target))
    source_font, target_font = _font(cell_width), _font(cell_height)
    longest = max(width_em(label) for label in source)
    label_height = (longest * math.sin(math.radians(SLANT)) + 1.5) * source_font * _POINT
    return Layout(
        columns=columns,
        rows=rows,
        width=len(source) * cell_width,
        height=len(target) * cell_height,
        column_step=max(len(source) * cell_width, title_width) + _GAP,
        row_step=len(target) * cell_height + label_height + _TITLE_HEIGHT,
        source_font=source_font,
        target_font=target_font,
        source_every=math.ceil(1.1 * source_font * _POINT / cell_width),
        target_every=math.ceil(1.1 * target_font * _POINT / cell_height),
    )


def _font(cell: float) -> float:
    return min(_MAX_FONT, max(_MIN_FONT, 0.6 * cell / _POINT))
