"""Heatmaps as SVG: of masks and biases, one row per query, one column per key; of matrices, such as
those of positions.

    mask            dark: may attend        light: masked
    bias, matrix    blue: above zero        orange: below zero        hatched: -inf, masked

The numbers on the axes are positions: the last query is at the last key. In a large heatmap a cell
stands for k x k neighboring pairs: for a mask, its darkness is the fraction of allowed pairs, in
quarters rounded up, so that a single pair is visible; for a bias, its color is the mean of the
finite values. k is the least that keeps all panels together below 40,000 cells, and the file far
below a megabyte; k is printed in the picture.

A mask or bias that differs between rows or heads has a panel for each of the first 16, counted from
1. The colors of each panel of a bias reach its own largest magnitude, which its title states. Blue
and orange differ from the background in lightness and from one another in hue, which print and
color-blind readers can distinguish.
"""

import html
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.positions import Positions

_MAX_CELLS = 40_000
_MAX_SIDE = 400
_MAX_PANELS = 16
_STRIP = 2**20
"""Number of pairs that are materialized at a time, to bound the memory for large reads."""

_INK, _PALE, _FRAME = "#1f2933", "#52606d", "#9aa5b1"
_SHARES = ("#eef2f6", "#b5d3fb", "#6aaafb", "#2971c6", "#0b4a8f")
_BELOW = ("#7a3800", "#a9520c", "#d26e1e", "#ee9149", "#fbb782", "#fddcc0")
_ABOVE = ("#c4ddfd", "#85b8fb", "#468de4", "#2971c6", "#0c56a5", "#073e7a")
_ZERO, HATCHED = "#f7f8fa", "hatched"

_FONT, _CHARACTER, _LINE = 11, 6.2, 15
"""Size of the font, width of a character and height of a line, in pixels."""
_LABEL, _GAP, _EDGE = 20, 18, 8
_MIN_PANEL = 120
_MOST_TITLE = 640
"""Largest width that a title adds to a picture; longer ones are truncated."""


SHOWN = 8
"""Number of queries and keys that a notebook shows of a mask or bias without sizes."""


class Scale(NamedTuple):
    """Colors of the levels of cells, and their legend."""

    colors: tuple[str, ...]
    """Fill color of each level."""
    ground: int
    """Level that is drawn as the background of the panel."""
    legend: tuple[tuple[int, str], ...]
    """Levels shown below the picture, with labels."""


class Panel(NamedTuple):
    """One row or head of a mask or a bias, or a matrix."""

    title: str
    levels: tuple[tuple[int, ...], ...]
    """Level of each cell, row by row."""
    num_rows: int
    num_columns: int
    pairs: int
    """Number of rows, and of columns, per cell."""
    first: int
    """Number of the first row on its axis."""
    names: tuple[str, str] = ("query", "key")
    """Names of the axes of rows and of columns."""

    @property
    def cell(self) -> float:
        """Side of a cell in pixels."""
        side = max(len(self.levels), len(self.levels[0]))
        return max(1.0, min(16.0, 400 // side))


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Heatmap of a mask, a bias or a matrix. Notebooks display it, `svg` is its SVG text, `save`
    writes a file."""

    heading: str
    panels: tuple[Panel, ...]
    scale: Scale
    left_out: int = 0
    """Number of panels beyond the first 16, which are not drawn."""

    @property
    def svg(self) -> str:
        """SVG text of the picture."""
        return "\n".join([*_document(self), ""])

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the picture to a .svg, .png or .pdf file and return its path.

        A notebook replaces a file that it wrote since it was started.
        Raises: UserError for another suffix, an existing file (unless overwrite), or if the folder
                does not exist.
        """
        output, path = importlib.import_module("regard.look.figures.output"), Path(path)
        if path.suffix.lower() == ".svg":
            return output.Figure(self.svg).save(path, overwrite=overwrite)
        plot = importlib.import_module(
            "regard.look.figures.positions"
        ).plot_picture  # imports matplotlib
        plot(self, path, overwrite=overwrite or output.is_own(path))
        output.mark_own(path)
        return path

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        panels = "1 panel" if len(self.panels) == 1 else f"{len(self.panels)} panels"
        return f"<picture of {self.heading}, {panels}; .save(path) writes it>"


def draw_mask(
    materialize: Callable[[Positions], Tensor], positions: Positions, *, title: str
) -> Picture:
    """Draw a mask. `materialize` returns its boolean tensor at positions, which broadcasts to (...,
    query, key).

    Raises: ValueError unless there are at least one query and one key.
    """
    fractions, names, pairs = _average_cells(materialize, positions)
    levels = (fractions * (len(_SHARES) - 1)).ceil().long()
    legend = ((len(_SHARES) - 1, "may attend"), (0, "masked"))
    return _picture(
        title,
        levels,
        names=names,
        positions=positions,
        pairs=pairs,
        scale=Scale(_SHARES, 0, legend),
    )


def draw_bias(
    materialize: Callable[[Positions], Tensor], positions: Positions, *, title: str
) -> Picture:
    """Draw a bias. `materialize` returns its tensor at positions, which broadcasts to (..., query,
    key).

    Raises: ValueError unless there are at least one query and one key, and for NaN.
    """
    means, names, pairs = _average_cells(materialize, positions)
    levels, scale, bounds = _signed_levels(means)
    if len(set(bounds)) > 1:
        names[: len(bounds)] = [
            f"{name}, up to \u00b1{bound}" for name, bound in zip(names, bounds, strict=False)
        ]
    return _picture(title, levels, names=names, positions=positions, pairs=pairs, scale=scale)


def draw_matrix(
    matrix: Float[Tensor, "row column"],
    *,
    title: str,
    names: tuple[str, str] = ("row", "column"),
    first: int = 0,
) -> Picture:
    """Draw a matrix of signed numbers. names: of the axes of rows and of columns; first: number of
    the first row.

    Raises: ValueError unless there are at least one row and one column, and for NaN.
    """
    rows, columns = matrix.shape
    positions = Positions(rows, columns, torch.device("cpu"))
    means, _, pairs = _average_cells(
        lambda tile: matrix[slice(*tile.rows)] if tile.rows else matrix, positions
    )
    levels, scale, _ = _signed_levels(means)
    panel = Panel("", tuple(map(tuple, levels[0].tolist())), rows, columns, pairs, first, names)
    return Picture(heading=title, panels=(panel,), scale=scale)


def _signed_levels(means: Tensor) -> tuple[Tensor, Scale, list[str]]:
    """Return the level of each mean, the scale from the largest magnitude of a panel below zero to
    that above, and the largest magnitude of each panel."""
    hidden = means == float("-inf")
    finite = means.masked_fill(hidden, 0.0)
    largest = finite.abs().amax((-2, -1), keepdim=True)
    bounds = [f"{bound:.3g}" for bound in largest.flatten().tolist()]
    steps = len(_ABOVE)
    levels = (finite / largest.masked_fill(largest == 0, 1.0) * steps).round().long() + steps
    levels = levels.masked_fill(hidden, 2 * steps + 1)
    bound = bounds[0] if len(set(bounds)) == 1 else "largest"
    ends = {0: f"-{bound}", 2 * steps: bound if bound == bounds[0] else "largest of the panel"}
    legend = tuple((level, ends.get(level, "")) for level in range(2 * steps + 1))
    if bound == "0":
        legend = ((steps, "0"),)
    if bool(hidden.any()):
        legend = (*legend, (2 * steps + 1, "masked (-inf)"))
    return levels, Scale((*_BELOW, _ZERO, *_ABOVE, HATCHED), steps, legend), bounds


def shown_sizes(tensor: Tensor) -> tuple[int, int]:
    """Return the sizes (query, key) of a tensor for a picture; 8 for those of size 1, which
    broadcast."""
    queries, keys = (SHOWN if size == 1 else size for size in tensor.shape[-2:])
    return queries, keys


def shown_sizes_of_both(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Return the sizes of a combination of two masks or biases, of which one may have its own."""
    queries, keys = (
        second if first == SHOWN else first for first, second in zip(one, other, strict=True)
    )
    return queries, keys


def side_by_side(pictures: Sequence[Picture], *, heading: str = "") -> Picture:
    """Combine the panels of several pictures, which must have the same scale (such as masks), into
    one picture."""
    if len({picture.scale for picture in pictures}) != 1:
        raise ValueError(
            "pictures side by side must have the same scale, got different colors or bounds"
        )
    panels = tuple(
        panel._replace(title=" ".join(filter(None, (picture.heading, panel.title))))
        for picture in pictures
        for panel in picture.panels
    )
    left_out = sum(picture.left_out for picture in pictures)
    return Picture(heading=heading, panels=panels, scale=pictures[0].scale, left_out=left_out)


# From pairs to cells


def _average_cells(
    materialize: Callable[[Positions], Tensor], positions: Positions
) -> tuple[Float[Tensor, "panel row column"], list[str], int]:
    """Return the mean of each cell, the names of all panels, and the number of pairs along the side
    of a cell."""
    for name, size in (("num_queries", positions.num_queries), ("num_keys", positions.num_keys)):
        if size < 1:
            raise ValueError(f"{name} of a picture must be at least 1, got {size}")
    leading = tuple(materialize(positions.tile(0, 1)).shape[:-2])
    pairs = _pairs_per_cell(
        positions.num_queries, positions.num_keys, min(math.prod(leading), _MAX_PANELS)
    )
    strip = pairs * max(1, _STRIP // (pairs * positions.num_keys))
    means = [
        _cell_means(
            materialize(positions.tile(first, last)),
            leading,
            last - first,
            positions.num_keys,
            pairs,
        )
        for first in range(0, positions.num_queries, strip)
        for last in [min(first + strip, positions.num_queries)]
    ]
    return torch.cat(means, 1), _names(leading), pairs


def _pairs_per_cell(num_queries: int, num_keys: int, num_panels: int) -> int:
    """Return the least number of pairs along the side of a cell that respects the limits on
    cells."""
    pairs = 1
    while True:
        rows, columns = -(-num_queries // pairs), -(-num_keys // pairs)
        if rows * columns * num_panels <= _MAX_CELLS and max(rows, columns) <= _MAX_SIDE:
            return pairs
        pairs += 1


def _cell_means(
    values: Tensor, leading: tuple[int, ...], rows: int, columns: int, pairs: int
) -> Tensor:
    """Return the mean of each cell, (panel, row, column), ignoring -inf; a cell with nothing else
    is -inf."""
    values = (
        values.detach()
        .expand(*leading, rows, columns)
        .reshape(-1, rows, columns)[:_MAX_PANELS]
        .float()
        .cpu()
    )
    if bool(values.isnan().any()):
        raise ValueError(f"values must not be NaN to be drawn, got {int(values.isnan().sum())} NaN")
    counts = values != float("-inf")
    beyond = (0, -columns % pairs, 0, -rows % pairs)
    sums, totals = (
        torch.nn.functional.pad(x, beyond)
        .unflatten(-1, (-1, pairs))
        .unflatten(-3, (-1, pairs))
        .sum((-1, -3))
        for x in (values.masked_fill(~counts, 0.0), counts.float())
    )
    return torch.where(totals > 0, sums / totals, float("-inf"))


def _names(leading: tuple[int, ...]) -> list[str]:
    """Return the name of each panel, such as "row 0, head 2", without axes of size 1."""
    axes = ["row", "head", *(f"axis {axis}" for axis in range(2, len(leading)))]
    return [
        ", ".join(
            f"{axis} {i + 1}"
            for axis, i, size in zip(axes, index, leading, strict=False)
            if size > 1
        )
        for index in product(*(range(size) for size in leading))
    ]


def _picture(
    heading: str,
    levels: Tensor,
    *,
    names: list[str],
    positions: Positions,
    pairs: int,
    scale: Scale,
) -> Picture:
    first = positions.num_keys - positions.num_queries  # the last query is at the last key
    panels = tuple(
        Panel(
            name, tuple(map(tuple, rows)), positions.num_queries, positions.num_keys, pairs, first
        )
        for name, rows in zip(names, levels.tolist(), strict=False)
    )
    return Picture(heading=heading, panels=panels, scale=scale, left_out=len(names) - len(panels))


# From cells to text


def _document(picture: Picture) -> Iterator[str]:
    """Yield the lines of the SVG file: heading, panels in a grid, legend."""
    panels = picture.panels
    # Aspect ratio of about 4:3 panels, as on a landscape page; all as large as the largest.
    columns = min(len(panels), max(1, math.ceil(math.sqrt(len(panels) * 4 / 3))))
    boxes = [_box(panel) for panel in panels]
    width, height = max(box[0] for box in boxes) + _GAP, max(box[1] for box in boxes) + _GAP
    top = _EDGE + (_LINE + 6 if picture.heading else 0)
    legend, legend_width = _legend(picture)
    bottom = top + -(-len(panels) // columns) * height
    across = max(columns * width - _GAP, legend_width, 1.1 * _title_width(picture.heading))
    total = f"{2 * _EDGE + across:g}", f"{bottom + _LINE + _EDGE:g}"
    down, right = panels[0].names
    words = (
        "queries down, keys across, by position"
        if down == "query"
        else f"{down} down, {right} across"
    )
    label = html.escape(f"{picture.heading}: {words}")
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" '
        f'width="{total[0]}" '
        f'height="{total[1]}" viewBox="0 0 {total[0]} {total[1]}" '
        f'style="max-width:100%;height:auto" '
        f'font-family="system-ui, sans-serif" font-size="{_FONT}" fill="{_INK}">'
    )
    if HATCHED in picture.scale.colors:
        yield from (_hatch(cell) for cell in sorted({1.0, *(panel.cell for panel in panels)}))
    yield '<rect width="100%" height="100%" fill="#ffffff"/>'
    if picture.heading:
        yield _title(picture.heading, _EDGE, _EDGE + _LINE - 4, across, weight="600")
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        yield f'<g transform="translate({_EDGE + column * width:g} {top + row * height:g})">'
        yield from _panel(panel, picture.scale, width - _GAP)
        yield "</g>"
    yield f'<g transform="translate({_EDGE} {bottom:g})">{legend}</g>'
    yield "</svg>"


def _margins(panel: Panel) -> tuple[float, float]:
    """Return the margins left of the cells and above them: labels, ticks, and the title if there is
    one."""
    largest = max(panel.first + panel.num_rows - 1, abs(panel.first))
    ticks = _CHARACTER * (len(str(largest)) + (panel.first < 0))
    return _LABEL + ticks + 4, (_LINE + 2 if panel.title else 0) + 2 * _LINE


def _box(panel: Panel) -> tuple[float, float]:
    """Return width and height of a panel with its labels."""
    left, top = _margins(panel)
    width, height = len(panel.levels[0]) * panel.cell, len(panel.levels) * panel.cell
    return max(left + width, _MIN_PANEL, _title_width(panel.title)), top + height + (
        _LINE if panel.pairs > 1 else 0
    )


def _panel(panel: Panel, scale: Scale, max_width: float) -> Iterator[str]:
    """Yield title, axes, cells and frame of one panel."""
    (left, top), cell = _margins(panel), panel.cell
    columns, rows = len(panel.levels[0]), len(panel.levels)
    width, height = columns * cell, rows * cell
    if panel.title:
        yield _title(panel.title, 0, _LINE - 4, max_width)
    label = f'fill="{_PALE}" text-anchor="middle"'
    yield f'<text x="{left + width / 2:g}" y="{top - _LINE - 4:g}" {label}>{panel.names[1]}</text>'
    yield f'<text transform="translate({_LABEL - 9} {top + height / 2:g}) rotate(-90)" {label}>{panel.names[0]}</text>'
    yield from _ticks(panel, left, top)
    yield f'<g transform="translate({left:g} {top:g}) scale({cell:g})" shape-rendering="crispEdges">'
    yield f'<rect width="{columns}" height="{rows}" fill="{scale.colors[scale.ground]}"/>'
    for level, path in sorted(_rectangles(panel.levels, scale.ground).items()):
        yield f'<path fill="{_fill(scale, level, cell)}" d="{"".join(path)}"/>'
    yield "</g>"
    if cell >= 6:
        lines = [f"M{x * cell:g} 0v{height:g}" for x in range(1, columns)]
        lines += [f"M0 {y * cell:g}h{width:g}" for y in range(1, rows)]
        yield f'<path transform="translate({left:g} {top:g})" stroke="#ffffff" d="{"".join(lines)}"/>'
    yield f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" fill="none" stroke="{_FRAME}"/>'
    if panel.pairs > 1:
        what = "pairs" if panel.names[0] == "query" else "numbers"
        words = f"a cell is {panel.pairs} x {panel.pairs} {what}"
        yield f'<text x="{left:g}" y="{top + height + _LINE - 2:g}" fill="{_PALE}">{words}</text>'


def _ticks(panel: Panel, left: float, top: float) -> Iterator[str]:
    """Yield tick labels, positions along both axes, as many as fit."""
    pixels, first = panel.cell / panel.pairs, panel.first
    across = _tick_step(_CHARACTER * len(str(panel.num_columns - 1)) + 6, pixels)
    for position in range(0, panel.num_columns, across):
        x = left + (position + 0.5) * pixels
        yield f'<text x="{x:g}" y="{top - 5:g}" text-anchor="middle">{position}</text>'
    down = _tick_step(_FONT, pixels)
    for position in range(first + -first % down, first + panel.num_rows, down):
        y = top + (position - first + 0.5) * pixels + 4
        yield f'<text x="{left - 4:g}" y="{y:g}" text-anchor="end">{position}</text>'


def _tick_step(min_distance: float, pixels: float) -> int:
    """Return the least of 1, 2, 5, 10, 20 ... positions that are at least `min_distance` apart."""
    return next(
        step
        for power in range(12)
        for step in (10**power, 2 * 10**power, 5 * 10**power)
        if step * pixels >= min_distance
    )


def _rectangles(levels: Sequence[Sequence[int]], ground: int) -> dict[int, list[str]]:
    """Return the SVG path of each level: runs of equal cells in a row, merged with equal runs of
    the rows below."""
    paths: dict[int, list[str]] = {}
    open_runs: dict[tuple[int, int, int], int] = {}  # level, first column, columns -> first row
    for y, row in enumerate([*levels, ()]):
        runs = list(_runs(row, ground))
        for run in open_runs.keys() - set(runs):
            level, x, width = run
            start = open_runs[run]
            paths.setdefault(level, []).append(f"M{x} {start}h{width}v{y - start}h-{width}z")
        open_runs = {run: open_runs.get(run, y) for run in runs}
    return {level: sorted(path) for level, path in paths.items()}


def _runs(row: Sequence[int], ground: int) -> Iterator[tuple[int, int, int]]:
    """Yield level, first column and number of columns of each run of equal cells that are not
    background."""
    x = 0
    for level, cells in groupby(row):
        width = len(list(cells))
        if level != ground:
            yield level, x, width
        x += width


def _fill(scale: Scale, level: int, cell: float) -> str:
    """Return the fill of a level, where a unit is drawn as `cell` pixels."""
    return f"url(#hatched-{cell:g})" if scale.colors[level] == HATCHED else scale.colors[level]


def _hatch(cell: float) -> str:
    """Return a hatch pattern of lines four pixels apart, where a unit is drawn as `cell` pixels."""
    return (
        f'<defs><pattern id="hatched-{cell:g}" width="4" height="4" patternUnits="userSpaceOnUse" '
        f'patternTransform="scale({1 / cell:g})"><rect width="4" height="4" fill="#ffffff"/>'
        f'<path d="M-1 1l2-2M0 4l4-4M3 5l2-2" stroke="{_PALE}"/></pattern></defs>'
    )


def _legend(picture: Picture) -> tuple[str, float]:
    """Return a swatch per level with its label, and the total width; swatches without labels
    adjoin."""
    parts, x = [], 0.0
    for level, label in picture.scale.legend:
        if label.startswith("-"):  # the label of the lower end precedes its swatch
            parts.append(f'<text x="{x:g}" y="11">{label}</text>')
            x += _CHARACTER * len(label) + 6
        fill = _fill(picture.scale, level, 1.0)
        parts.append(
            f'<rect x="{x:g}" width="14" height="14" fill="{fill}" stroke="{_FRAME}" '
            f'stroke-width="0.5"/>'
        )
        x += 14
        if label and not label.startswith("-"):
            parts.append(f'<text x="{x + 6:g}" y="11">{label}</text>')
            x += _CHARACTER * len(label) + 24
    if picture.left_out:
        words = f"the first {len(picture.panels)} of {len(picture.panels) + picture.left_out}"
        parts.append(f'<text x="{x + 6:g}" y="11" fill="{_PALE}">{words}</text>')
        x += _CHARACTER * len(words) + 6
    return "".join(parts), x


def _title_width(text: str) -> float:
    return min(_MOST_TITLE, _CHARACTER * len(text) + 1)


def _title(text: str, x: float, y: float, max_width: float, *, weight: str = "400") -> str:
    """Return a line of text, truncated to the width; the full text is its tooltip."""
    max_len = max(8, int(max_width / _CHARACTER))
    truncated = text if len(text) <= max_len else text[: max_len - 3] + "..."
    tooltip = "" if truncated == text else f"<title>{html.escape(text)}</title>"
    return (
        f'<text x="{x:g}" y="{y:g}" font-weight="{weight}">{tooltip}{html.escape(truncated)}</text>'
    )
