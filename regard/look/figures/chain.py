"""Chain figure: which earlier items each item of a sequence reads, drawn line by line."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from regard.errors import UserError
from regard.look.figures.canvas import INK, PALE, draw_weight_scale, weight_colors
from regard.look.figures.labels import readable, width_em

MAX_WORDS = 100
"""Largest number of tokens: the number of boxes is half of its square."""
_RED, _PALE_RED = "#c01722", "#ffc4c0"
_FONT, _SMALL_FONT, _MAX_WIDTH = 10.0, 6.0, 16.0 * 72
_LINE, _GAP, _MARGIN = 1.75, 0.35, 0.35
"""Height of a line, space between boxes, horizontal padding of a box, in font sizes."""
_HEADER, _BARE_HEADER, _LEGEND = 24.0, 8.0, 60.0
"""Heights of the header with and without a direction, and width of the legend, in points."""


class Chain(NamedTuple):
    """Attention over the past in one direction: labels in the order of reading, and weights."""

    labels: Sequence[str]
    weights: Float[Tensor, "step word"]
    direction: str = ""
    """Direction of reading, "forward" or "backward"; empty if the model has only one."""


class _Columns(NamedTuple):
    """Position of each token, and width and height of all, in points."""

    words: Sequence[str]
    font: float
    lefts: Sequence[float]
    widths: Sequence[float]
    size: tuple[float, float]


def plot_chain(figure: Figure, chains: Sequence[Chain], *, title: str = "") -> None:
    """Plot the attention of a layer over its past, with its directions one above the other."""
    if len(chains[0].labels) > MAX_WORDS:
        raise UserError(
            f"a figure of a chain must have at most {MAX_WORDS} tokens, got "
            f"{len(chains[0].labels)}: use a shorter text"
        )
    title = readable(title, max_length=400, spaces=" ") if title else ""
    all_columns = [_columns(chain.labels) for chain in chains]
    width = max(11.0 * width_em(title), *(columns.size[0] for columns in all_columns)) + _LEGEND
    headers = [_HEADER if chain.direction else _BARE_HEADER for chain in chains]
    top = total = sum(headers) + sum(columns.size[1] for columns in all_columns)
    figure.set_size_inches(width / 72, total / 72)
    for chain, columns, header in zip(chains, all_columns, headers, strict=True):
        own_width, height = columns.size
        top -= header
        if chain is chains[0]:
            tall = min(1.4 * 72, 0.9 * top)
            left, bottom = own_width + 10, top - tall
            box = left / width, bottom / total, 8 / width, tall / total
            draw_weight_scale(figure, box)
        top -= height
        axes = figure.add_axes((0, top / total, own_width / width, height / total))
        _draw_lines(axes, chain, columns)
        axes.set_title(chain.direction, fontsize=9, color=PALE, loc="left", pad=4)
    figure.text(0, 1.0, title, fontsize=11, color=INK, va="bottom")


def _columns(labels: Sequence[str]) -> _Columns:
    """Return the positions of the tokens; the font shrinks to a largest width of the line."""
    words = [readable(label) for label in labels]
    unit = [width_em(word) + 2 * _MARGIN for word in words]
    font = min(_FONT, max(_SMALL_FONT, _MAX_WIDTH / (sum(unit) + _GAP * len(unit))))
    lefts, left = [], 0.0
    for width in unit:
        lefts.append(left * font)
        left += width + _GAP
    widths = [width * font for width in unit]
    size = lefts[-1] + widths[-1], _LINE * font * len(words)
    return _Columns(words, font, lefts, widths, size)


def _draw_lines(axes: Axes, chain: Chain, columns: _Columns) -> None:
    colors, line = weight_colors(), _LINE * columns.font
    height = 0.82 * line
    for step in range(len(columns.words)):
        bottom = step * line + (line - height) / 2
        for index in range(step + 1):
            weight, is_current = float(chain.weights[step, index]), index == step
            left, width = columns.lefts[index], columns.widths[index]
            light, dark, bold, edge, line_width = "white", INK, "normal", "none", 0.0
            if is_current:
                light, dark, bold, edge, line_width = _PALE_RED, _RED, "bold", _RED, 0.9
            if is_current or weight > 0:
                style = {"facecolor": colors(weight), "edgecolor": edge, "linewidth": line_width}
                axes.add_patch(Rectangle((left, bottom), width, height, clip_on=False, **style))
            center = left + width / 2, bottom + height / 2
            style = {"weight": bold, "color": light if weight > 0.45 else dark}
            place = {"ha": "center", "va": "center_baseline", "fontsize": columns.font}
            axes.text(*center, columns.words[index], **style, **place)
    axes.set(xlim=(0, columns.size[0]), ylim=(len(columns.words) * line, 0))
    axes.set_axis_off()
