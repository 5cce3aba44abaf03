"""Chain figure: which earlier items each item of a sequence reads, drawn line by line."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from torch import Tensor

from regard.errors import UserError
from regard.look.figures.alignment import plot_style, render_figure, weight_colors
from regard.look.figures.labels import escape_missing, families_for, isolate_sides, readable
from regard.look.figures.output import check_path
from regard.system.writing import write_atomically


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
    """Attention of one layer over its past in one direction: labels in the order of reading, and
    weights.

    Raises: ValueError if sizes do not match, a weight is not finite, or a weight of a later token
            is not zero.
    """

    labels: Sequence[str]
    """Label of each token."""
    weights: Float[Tensor, "step word"]
    """Rows sum to one, or are zero."""
    layer: int = 1
    """Number of the layer, from 1."""
    direction: str = ""
    """Direction of reading, "forward" or "backward"; empty if the model has only one."""
    title: str = ""
    """Title of the figure."""

    def __post_init__(self) -> None:
        expected = len(self.labels), len(self.labels)
        if tuple(self.weights.shape) != expected:
            raise ValueError(
                f"weights must have the shape (labels, labels) = {expected}, got "
                f"{tuple(self.weights.shape)}"
            )
        if not bool(self.weights.isfinite().all()):
            raise ValueError("weights must be finite, got NaN or infinity from the model")
        if bool(self.weights.triu(1).any()):
            raise ValueError("weights must be zero for later tokens, got nonzero weights")


MAX_WORDS = 100
"""Largest number of tokens: the number of boxes is half of its square."""
_RED, _PALE_RED, _INK, _PALE = "#c01722", "#ffc4c0", "#1f2933", "#66727f"
_FONT, _SMALL_FONT, _MAX_WIDTH = 10.0, 6.0, 16.0 * 72
_LINE, _GAP, _MARGIN = 1.75, 0.35, 0.35
"""Height of a line, space between boxes, and horizontal padding of a box, in units of the font
size."""
_HEADER, _BARE_HEADER, _LEGEND = 24.0, 8.0, 60.0
"""Height of the header with and without the name of a direction, and width of the legend, in
points."""
_DARK = 0.45
"""Weight above which the text on a box is light."""


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """Position of each token, in points."""

    font: float
    lefts: tuple[float, ...]
    widths: tuple[float, ...]

    @property
    def width(self) -> float:
        return self.lefts[-1] + self.widths[-1]


def plot_chain(
    chains: Sequence[Chain], path: str | Path, *, layer: int | None = None, overwrite: bool = False
) -> Path:
    """Plot the attention of one layer over its past, with its directions one above the other.

    chains:  one chain per layer and direction.
    path:    file to write, .png, .svg or .pdf; returned. SVG and PDF keep the tokens as text.
    layer:   layer to plot, from 1; by default the last.
    Raises:  UserError for another suffix, an existing file (unless overwrite), if the folder or
             layer does not exist, or if the text is too long; ValueError if there is no chain.
    """
    path = Path(path)
    check_path(path, overwrite)
    shown = _of_layer(chains, layer)
    words = [readable(label) for label in shown[0].labels]
    title = readable(shown[0].title, max_length=400, spaces=" ") if shown[0].title else ""
    families = families_for([*words, title])
    with plot_style(families):
        figure = _draw(shown, families, title, is_text_kept=path.suffix.lower() == ".svg")
        picture = render_figure(figure, path.suffix.lower())
    write_atomically(path, picture, overwrite=overwrite)
    return path


def _of_layer(chains: Sequence[Chain], layer: int | None) -> list[Chain]:
    if not chains:
        raise ValueError("chains must not be empty")
    most = max(chain.layer for chain in chains)
    if layer is not None and not 1 <= layer <= most:
        raise UserError(f"layer must be between 1 and {most}, got {layer}")
    shown = [chain for chain in chains if chain.layer == (most if layer is None else layer)]
    size = len(shown[0].labels)
    if size > MAX_WORDS:
        raise UserError(
            f"a figure of a chain must have at most {MAX_WORDS} tokens, got {size}: use a shorter "
            f"text"
        )
    return shown


def _draw(
    shown: Sequence[Chain], families: Sequence[str], title: str, *, is_text_kept: bool
) -> Figure:
    texts, columns = [], []
    for chain in shown:
        words = [readable(label) for label in chain.labels]
        texts.append(words if is_text_kept else [escape_missing(word, families) for word in words])
        columns.append(_columns(texts[-1], families))
    width = max(*(panel.width for panel in columns), _width(title, families, 11.0)) + _LEGEND
    heights = [_LINE * panel.font * len(panel.lefts) for panel in columns]
    headers = [_HEADER if chain.direction else _BARE_HEADER for chain in shown]
    total = sum(heights) + sum(headers)
    figure = Figure(figsize=(width / 72, total / 72))
    top = total
    for chain, words, panel, height, header in zip(
        shown, texts, columns, heights, headers, strict=True
    ):
        top -= header
        axes = figure.add_axes((0, (top - height) / total, panel.width / width, height / total))
        _draw_lines(axes, chain, words, panel)
        axes.set_title(chain.direction, fontsize=9, color=_PALE, loc="left", pad=4)
        if chain is shown[0]:
            _draw_scale(figure, (panel.width / width, top / total, width, total))
        top -= height
    if title:
        figure.text(0, 1.0, isolate_sides(title), fontsize=11, color=_INK, va="bottom")
    return figure


def _columns(words: Sequence[str], families: Sequence[str]) -> _Columns:
    """Return the positions of the tokens; the font shrinks to a largest width of the line."""
    unit = [_width(word, families, 1.0) + 2 * _MARGIN for word in words]
    font = min(_FONT, max(_SMALL_FONT, _MAX_WIDTH / (sum(unit) + _GAP * len(unit))))
    lefts, left = [], 0.0
    for width in unit:
        lefts.append(left * font)
        left += width + _GAP
    return _Columns(font=font, lefts=tuple(lefts), widths=tuple(width * font for width in unit))


def _width(text: str, families: Sequence[str], size: float) -> float:
    """Return the width of a text in bold, in points."""
    bold = FontProperties(family=[*families, "sans-serif"], weight="bold", size=10.0)
    return (
        text_to_path.get_text_width_height_descent(text, bold, ismath=False)[0] * size / 10.0
        if text
        else 0.0
    )


def _draw_lines(axes: Axes, chain: Chain, words: Sequence[str], columns: _Columns) -> None:
    colors, line = weight_colors(), _LINE * columns.font
    style = {"ha": "center", "va": "center_baseline", "fontsize": columns.font}
    height = 0.82 * line
    for step in range(len(words)):
        bottom = step * line + (line - height) / 2
        for index in range(step + 1):
            weight, is_current = float(chain.weights[step, index]), index == step
            box = (columns.lefts[index], bottom), columns.widths[index], height
            if is_current or weight > 0:
                frame = Rectangle(*box, facecolor=colors(weight), clip_on=False)
                frame.set(
                    edgecolor=_RED if is_current else "none", linewidth=0.9 if is_current else 0
                )
                axes.add_patch(frame)
            center = columns.lefts[index] + columns.widths[index] / 2, bottom + height / 2
            light, dark = (_PALE_RED, _RED) if is_current else ("white", _INK)
            color = light if weight > _DARK else dark
            axes.text(
                *center,
                words[index],
                color=color,
                weight="bold" if is_current else "normal",
                **style,
            )
    axes.set(xlim=(0, columns.width), ylim=(len(words) * line, 0))
    axes.set_axis_off()


def _draw_scale(figure: Figure, position: tuple[float, float, float, float]) -> None:
    right, top, width, height = position
    tall = min(1.4 * 72, 0.9 * top * height)
    box = right + 10 / width, top - tall / height, 8 / width, tall / height
    shades = ScalarMappable(Normalize(0, 1), weight_colors())
    bar = figure.colorbar(shades, cax=figure.add_axes(box), ticks=[0, 0.5, 1])
    bar.outline.set(color=_PALE, linewidth=0.6)
    bar.ax.tick_params(labelsize=7.5, length=2, width=0.6, color=_PALE, labelcolor=_INK)
    bar.set_label("weight", fontsize=8, color=_PALE)
