"""Picture of an outline: the stages of a model and their parts, with the shapes between them.

Columns of stages are drawn from below. At their outer sides are lines that skip parts, such as
residual connections; at their inner sides lines from the encoder, and dashed lines from the step
before. All lengths are in inches.
"""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyBboxPatch

from regard.look.figures.canvas import GRID, INK, PALE, open_figure
from regard.models.outline import Outline, Stage, format_shape
from regard.models.parts import Block, Operation

Point = tuple[float, float]
_FILLS = {"input": "#f3f4f6", "encoder": "#d6e6f4", "predictor": "#fbe3c8", "decoder": "#d3ecdf"}
_TINTS = {"encoder": "#f3f7fb", "predictor": "#fef8f0", "decoder": "#f2f9f5"}
_BLUE = "#2971c6"
_WIDTH, _GAP, _RESULT_GAP, _RADIUS = 2.4, 0.2, 0.36, 0.085
"""Width of a box, gaps between parts and between stages, radius of a sum."""
_NAME, _DETAIL, _LINE, _LETTER = 8.5, 7.5, 0.13, 0.056
"""Sizes of type in points; height of a line, and mean width of a letter of a detail."""
_LANE, _MARGIN = 0.16, 0.12
"""Distance of two lines beside the parts, and margin of a frame."""


class _Line(NamedTuple):
    """A line beside the parts of a block, from a point to a part (from 0)."""

    point: int
    part: int
    symbol: str
    lane: int


class _Column:
    """A column of stages around x = middle; `outer` is -1 if its outer side is the left one.

    Sides of a column: 1 is the outer side, -1 the inner one.
    """

    def __init__(self, axes: Axes, stages: Sequence[Stage], outer: int):
        self.axes, self.stages, self.outer = axes, stages, outer
        self.middle = self.top = 0.0
        self.is_switched = [stage.part for stage in stages[:2]] == ["input", "input"]
        self.readers: list[tuple[float, str]] = []
        """Heights of the lines from the encoder, and their symbols."""
        self.lanes = {1: _LANE, -1: _LANE}
        self.widths = {1: 0.0, -1: 0.0}
        """Widths of a lane, and of all lines of a side."""
        for side in (1, -1):
            blocks = [block for stage in stages for block in stage.blocks]
            lines = [line for block in blocks for line in _lines_beside(block, side)]
            letters = max((len(re.sub("[_{}]", "", line.symbol)) for line in lines), default=0)
            self.lanes[side] = _LANE + 0.8 * _LETTER * letters
            count = max((line.lane + 1 for line in lines), default=0)
            self.widths[side] = self.lanes[side] * count

    def x(self, side: int, distance: float = 0.0) -> float:
        """Return x at a distance from the boxes."""
        return self.middle + side * self.outer * (_WIDTH / 2 + distance)

    def reach(self, side: int) -> float:
        """Return the distance of the frames from the middle."""
        return _WIDTH / 2 + self.widths[side] + 2 * _MARGIN

    def draw(self, middle: float) -> None:
        self.middle = middle
        end = self._draw_switch() if self.is_switched else (0.0, 0.0)
        stages = self.stages[2:] if self.is_switched else self.stages
        for number, stage in enumerate(stages):
            if stage.blocks:
                self._draw_frame(stage)
            else:
                name = stage.name if stage.part == "input" else f"{stage.part}: {stage.name}"
                low, high = self._draw_box(name, stage.detail, _FILLS[stage.part])
                self.readers += [((low + high) / 2, stage.reads)] if stage.reads else []
            # Arrows end at boxes, not at frames; the line of the encoder goes on to the right.
            is_last = number == len(stages) - 1
            self._rise(_RESULT_GAP, self.outer > 0 if is_last else not stages[number + 1].blocks)
            self._label(stage)
        if self.is_switched:
            x, y = self.x(1, self.reach(1) - _WIDTH / 2 + 0.16), self.top - 0.28
            _draw_line(self.axes, [(self.middle, y), (x, y), (x, end[1]), end], is_dashed=True)

    def _draw_switch(self) -> Point:
        """Draw both inputs and the switch; return the end of the line that is fed back."""
        width = _WIDTH / 2 + 0.15
        xs = [self.middle + side * self.outer * (width / 2 + 0.04) for side in (-1, 1)]
        details = [_wrap(stage.detail, width) for stage in self.stages[:2]]
        top = _LINE * (1 + max(map(len, details))) + 0.1
        joint, ends = (self.middle, top + 0.36), [(x, top + 0.12) for x in xs]
        for x, stage, detail in zip(xs, self.stages, details, strict=False):
            _draw_box(self.axes, (x, 0.0), (width, top), [stage.name, *detail], _FILLS["input"])
            _draw_line(self.axes, [(x, top), (x, top + 0.12)], is_arrow=False)
        _draw_line(self.axes, [ends[0], joint], is_arrow=False, linewidth=1.8)
        for point in (*ends, joint):
            self.axes.add_patch(Circle(point, 0.035, facecolor="white", edgecolor=INK, zorder=5))
        self.top = joint[1]
        self._rise(_RESULT_GAP)
        self._label(self.stages[0])
        return xs[1] + self.outer * width / 2, top / 2

    def _draw_frame(self, stage: Stage) -> None:
        """Draw the parts of a stage inside of a frame."""
        bottom = self.top
        self._rise(0.06, is_arrow=False)
        for block in stage.blocks:
            self._draw_block(block, _FILLS[stage.part])
        lines = [f"{stage.part}: {stage.name}", *_wrap(stage.detail, self.reach(-self.outer))]
        self._rise(_LINE * len(lines) + 0.08, is_arrow=False)
        left, right = sorted(self.middle + s * self.outer * self.reach(s) for s in (-1, 1))
        size = right - left, self.top - bottom
        _draw_frame(self.axes, (left, bottom), size, _TINTS[stage.part], edgecolor=GRID, zorder=0.5)
        for number, line in enumerate(lines):
            place = left + 0.08, self.top - 0.1 - _LINE * number
            _draw_text(self.axes, place, line, ha="left", color=PALE)

    def _draw_block(self, block: Block, fill: str) -> None:
        bottom, points, spans = self.top + 0.08, [], []
        self._rise(0.16 if block.name else 0.0, is_arrow=False)
        for number, part in enumerate(block.parts):
            points.append(self.top + _GAP / 2 - 0.03)
            if number in part.inputs:
                self._rise(_GAP)
            else:  # another point, beside this part, is its input
                self._rise(_GAP / 2 - 0.03, is_arrow=False)
                self.top += _GAP / 2 + 0.03
            spans.append(self._draw_part(part, block, fill))
        points.append(self.top + _GAP / 2 - 0.03)
        for side in (1, -1):
            self._draw_lines(block, side, points, spans)
        for part, (low, high) in zip(block.parts, spans, strict=True):
            if part.reads:
                self.readers.append((low + (high - low) / (len(part.delayed) + 2), part.reads))
        if block.name:
            self._rise(0.28 if self.widths[-1] else 0.22, is_arrow=False)
            left, right = sorted(self.x(side, self.widths[side] + _MARGIN) for side in (-1, 1))
            _draw_frame(self.axes, (left, bottom), (right - left, self.top - bottom), "white")
            times = f"{block.times} \u00d7 " if block.times > 1 else ""
            place = left + 0.06, self.top - 0.1
            _draw_text(self.axes, place, times + block.name, ha="left", fontsize=_NAME)
            self._rise(0.08, is_arrow=False)

    def _draw_lines(
        self, block: Block, side: int, points: Sequence[float], spans: Sequence[Point]
    ) -> None:
        """Draw the lines at a side of a block; points, spans: heights of its points and parts."""
        lines = _lines_beside(block, side)
        for line in lines:
            part, (low, high) = block.parts[line.part], spans[line.part]
            ends = sorted(other.lane for other in lines if other.part == line.part)
            count = len(ends) + (side < 0 and bool(part.reads)) + 1
            share = (ends.index(line.lane) + 1) / count
            y = low + (high - low) * (share if side > 0 else 1 - share)
            x, start = self.x(side, self.lanes[side] * line.lane + _LANE), points[line.point]
            edge = self.middle + self.outer * _RADIUS if part.name == "+" else self.x(side)
            path = [(self.middle, start), (x, start), (x, y), (edge, y)]
            _draw_line(self.axes, path, is_dashed=side < 0)
            align = "right" if self.outer > 0 else "left"
            _draw_text(self.axes, (x - self.outer * 0.04, y + 0.12), line.symbol, ha=align)

    def _draw_part(self, part: Operation, block: Block, fill: str) -> Point:
        """Draw a part on top of the column; return its span."""
        if not part.name.startswith("+"):
            in_each = "; reads h^Enc in each block" * (part.reads == "h^Enc" and block.times > 1)
            fill = fill if "attention" in part.name else "white"
            return self._draw_box(part.name, part.detail + in_each, fill)
        bottom, x, y = self.top, self.middle, self.top + _RADIUS
        self.axes.add_patch(Circle((x, y), _RADIUS, facecolor="white", edgecolor=INK, zorder=3))
        _draw_line(self.axes, [(x - 0.05, y), (x + 0.05, y)], is_arrow=False, zorder=4)
        _draw_line(self.axes, [(x, y - 0.05), (x, y + 0.05)], is_arrow=False, zorder=4)
        if part.name == "+ P":
            path = [(x + self.outer * 0.3, y), (x + self.outer * _RADIUS, y)]
            _draw_line(self.axes, path)
            align = "left" if self.outer > 0 else "right"
            text = f"P: {part.detail.removesuffix(' positions')}"
            _draw_text(self.axes, (x + self.outer * 0.34, y), text, ha=align)
        self.top += 2 * _RADIUS
        return bottom, self.top

    def _rise(self, gap: float, is_arrow: bool = True) -> None:
        start = self.middle, self.top
        self.top += gap
        _draw_line(self.axes, [start, (self.middle, self.top)], is_arrow=is_arrow)

    def _draw_box(self, name: str, detail: str, fill: str) -> Point:
        bottom, lines = self.top, [name, *_wrap(detail, _WIDTH)]
        size = _WIDTH, _LINE * len(lines) + 0.1
        _draw_box(self.axes, (self.middle, bottom), size, lines, fill)
        self.top += size[1]
        return bottom, self.top

    def _label(self, stage: Stage) -> None:
        label = f"{stage.symbol}  {format_shape(stage.shape)}".strip()
        _draw_text(self.axes, (self.middle + 0.08, self.top - 0.15), label, ha="left")


def plot_outline(outline: Outline, path: Path, *, title: str, overwrite: bool = False) -> None:
    """Plot an outline: the encoder left of predictor and decoder, if these have inputs."""
    with open_figure(path, overwrite=overwrite) as figure:
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        left, right = None, _Column(axes, (*outline.encoding, *outline.predicting), 1)
        if outline.encoding and outline.predicting[0].part == "input":
            left, right = _Column(axes, outline.encoding, -1), _Column(axes, outline.predicting, 1)
        if left is None:
            right.draw(right.reach(-1))
        else:
            left.draw(left.reach(1))
            bus = left.middle + left.reach(-1) + 0.2
            right.draw(bus + 0.3 + right.reach(-1))
            for y, symbol in right.readers:  # h^Enc, from the top of the encoder
                points = [(left.middle, left.top), (bus, left.top), (bus, y), (right.x(-1), y)]
                _draw_line(axes, points, color=_BLUE, zorder=2.5)
                _draw_text(axes, (bus + 0.05, y + 0.09), symbol, ha="left", color=_BLUE)
        width = right.middle + right.reach(1) + 0.2 * right.is_switched
        height = right.top if left is None else max(left.top, right.top)
        lines = textwrap.wrap(title, int(width / 0.075))
        for number, line in enumerate(lines):
            place = 0, height + 0.12 + 0.17 * (len(lines) - number)
            _draw_text(axes, place, line, is_math=False, fontsize=9.5, ha="left")
        height += 0.2 + 0.17 * len(lines)
        figure.set_size_inches(width + 0.06, height + 0.06)
        axes.set(xlim=(-0.03, width + 0.03), ylim=(-0.03, height + 0.03))


def _lines_beside(block: Block, side: int) -> list[_Line]:
    """Return the lines at a side: inputs that skip parts, or those of earlier steps.

    Lines in the same lane do not overlap; the shortest are next to the parts.
    """
    found: list[tuple[int, int, str]] = []
    for number, part in enumerate(block.parts):
        if side > 0:
            found += [(point, number, "") for point in part.inputs if point != number]
        else:
            found += [(point, number, symbol) for point, symbol in part.delayed]
    lines: list[_Line] = []
    for point, number, symbol in sorted(found, key=lambda line: abs(line[0] - line[1] - 0.5)):
        low, high = sorted((point, number + 0.5))
        below = -1
        for line in lines:
            start, end = sorted((line.point, line.part + 0.5))
            below = max(below, line.lane) if start < high and low < end else below
        lines.append(_Line(point, number, symbol, below + 1))
    return lines


def _wrap(text: str, width: float) -> list[str]:
    """Return the lines of a text, which are broken at commas outside of brackets if possible."""
    length = int((width - 0.1) / _LETTER)
    brackets = r"\([^()]*\)|\[[^\[\]]*\]"
    text = re.sub(brackets, lambda match: match[0].replace(" ", "\xa0"), text)
    pieces = re.split(r"(?<=[,;]) ", text)
    pieces = [piece.replace(" ", "\xa0") if len(piece) <= length else piece for piece in pieces]
    return textwrap.wrap(" ".join(pieces), length, break_long_words=False)


def _draw_line(
    axes: Axes,
    points: Sequence[Point],
    *,
    is_arrow: bool = True,
    is_dashed: bool = False,
    **style: Any,
) -> None:
    style = {"color": INK, "linewidth": 0.9, "zorder": 2, "solid_capstyle": "butt", **style}
    axes.plot(*zip(*points, strict=True), linestyle=(0, (3, 2)) if is_dashed else "-", **style)
    if is_arrow:
        (x, y), (from_x, from_y) = points[-1], points[-2]
        share = min(1.0, 0.08 / max(abs(x - from_x), abs(y - from_y)))
        start = x + (from_x - x) * share, y + (from_y - y) * share
        color, zorder = style["color"], style["zorder"]
        arrow = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "mutation_scale": 8}
        axes.annotate("", (x, y), start, arrowprops={"color": color, **arrow}, zorder=zorder)


def _draw_box(
    axes: Axes, place: Point, size: tuple[float, float], lines: Sequence[str], fill: str
) -> None:
    """Draw a box with a name and details, of which `place` is the middle of the bottom."""
    (x, bottom), (width, height) = place, size
    _draw_frame(axes, (x - width / 2, bottom), size, fill, edgecolor=INK, zorder=3)
    top = bottom + height / 2 + _LINE * (len(lines) - 1) / 2
    for number, line in enumerate(lines):
        style: dict[str, Any] = {"color": "#48535f"} if number else {"fontsize": _NAME}
        _draw_text(axes, (x, top - _LINE * number), line, **style)


def _draw_frame(axes: Axes, place: Point, size: Point, fill: str, **style: Any) -> None:
    style = {"edgecolor": PALE, "linewidth": 0.8, "zorder": 1, "facecolor": fill, **style}
    shape = "round,pad=0,rounding_size=0.06"
    axes.add_patch(FancyBboxPatch(place, *size, boxstyle=shape, **style))


def _draw_text(axes: Axes, place: Point, text: str, *, is_math: bool = True, **style: Any) -> None:
    style = {"fontsize": _DETAIL, "ha": "center", "va": "center", "color": INK, **style}
    axes.text(*place, _formulas(text) if is_math else text, parse_math=is_math, zorder=6, **style)


def _formulas(text: str) -> str:
    r"""Return a text with its symbols as formulas: s_{j-1}, h^Enc, y~, z^-1, sum_i alpha_ij."""
    text = text.replace("\xa0", " ").replace("sum_i alpha_ij", r"$\Sigma_i\,\alpha_{ij}$")
    text = text.replace("z^-1", "$z^{-1}$").replace(" -> ", " \u2192 ")
    text = re.sub(r"\b([a-z])~", r"$\\tilde{\1}$", text)
    text = re.sub(r"h\^(Enc|Dec)", r"$h^\\mathrm{\1}$", text)
    text = re.sub(r"\b([A-Za-z]'?)_(\{[^}]*\}|\w)", r"$\1_\2$", text)
    return re.sub(r"^([xyhz])(?=  |$)", r"$\1$", text)
