"""Picture of a model: its encoder, predictor and decoder as boxes, with the shapes between them.

Stages that lead from the source to h^Enc are on the left, those from the queries to y~ on the
right, both upward.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from regard.look.figures.alignment import plot_style
from regard.look.figures.labels import families_for
from regard.look.figures.output import check_path
from regard.look.figures.results import write_picture
from regard.models.outline import Outline, Stage, format_shape

_WIDTH, _HEIGHT, _STEP, _APART = 3.2, 0.62, 1.12, 4.3
_FILLS = {"input": "#f3f4f6", "encoder": "#d6e6f4", "predictor": "#fbe3c8", "decoder": "#d3ecdf"}
_SYMBOLS = {"h^Enc": r"$h^\mathrm{Enc}$", "h^Dec": r"$h^\mathrm{Dec}$", "y~": r"$\tilde{y}$"}
_INK = "#39424e"


def plot_outline(outline: Outline, path: Path, *, title: str, overwrite: bool = False) -> Path:
    """Plot an outline to an image file.

    Raises: UserError for another suffix, an existing file (unless overwrite), or if the folder does
            not exist.
    """
    check_path(path, overwrite)
    columns = [stages for stages in (outline.encoding, outline.predicting) if stages]
    # Where both columns exist, the stage that reads h^Enc is at least as high as the last one of
    # the encoder.
    lift = max(0, len(outline.encoding) - 1 - outline.joint) if len(columns) == 2 else 0
    height = max(len(columns[0]), len(columns[-1]) + lift)
    size = (1.15 * (_APART * len(columns)), 0.95 * (height * _STEP + 0.7))
    with plot_style(families_for([title])):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set_title(title, fontsize=10, loc="left", color=_INK)
        for column, stages in enumerate(columns):
            _draw_column(
                axes, stages, _APART * column, lift if column else 0, is_last=stages is columns[-1]
            )
        if len(columns) == 2:
            _draw_memory(axes, len(outline.encoding) - 1, outline.joint + lift)
        axes.set(
            xlim=(-0.3, _APART * (len(columns) - 1) + _WIDTH + 0.3),
            ylim=(-0.3, height * _STEP + 0.05),
        )
        return write_picture(figure, path, overwrite=overwrite)


def _draw_column(
    axes: Axes, stages: Sequence[Stage], left: float, lift: int, *, is_last: bool
) -> None:
    for index, stage in enumerate(stages):
        bottom = (index + lift) * _STEP
        box = FancyBboxPatch(
            (left, bottom),
            _WIDTH,
            _HEIGHT,
            boxstyle="round,pad=0.04",
            facecolor=_FILLS[stage.part],
            edgecolor=_INK,
        )
        axes.add_patch(box)
        middle, center = left + _WIDTH / 2, bottom + _HEIGHT / 2
        has_detail = bool(stage.detail)
        axes.text(
            middle,
            center + (0.1 if has_detail else 0),
            stage.name,
            ha="center",
            va="center",
            fontsize=9,
        )
        if has_detail:
            axes.text(
                middle,
                center - 0.16,
                stage.detail,
                ha="center",
                va="center",
                fontsize=6.5,
                color=_INK,
            )
        if stage.part != "input":
            font = {"fontsize": 6.5, "color": _INK, "fontstyle": "italic"}
            axes.text(
                left + 0.02, bottom + _HEIGHT + 0.07, stage.part, ha="left", va="bottom", **font
            )
        symbol = _SYMBOLS.get(stage.symbol, f"${stage.symbol}$" if stage.symbol else "")
        label = "  ".join(filter(None, (symbol, format_shape(stage.shape))))
        top = bottom + _HEIGHT + 0.05
        axes.text(
            middle + 0.1, top + 0.2, label, ha="left", va="center", fontsize=7.5, parse_math=True
        )
        end = bottom + _STEP - 0.05
        if stage is stages[-1] and not is_last:  # its result goes to the other column
            axes.plot([middle, middle], [top, end], color=_INK, linewidth=1)
        else:
            axes.add_patch(_arrow((middle, top), (middle, end)))


def _draw_memory(axes: Axes, last: int, joint: int) -> None:
    """Draw the way of h^Enc to the stage that reads it."""
    start = _WIDTH / 2, (last + 1) * _STEP - 0.05
    end = _APART - 0.05, joint * _STEP + _HEIGHT / 2
    corner = _WIDTH + (_APART - _WIDTH) / 2
    axes.plot([start[0], corner, corner], [start[1], start[1], end[1]], color=_INK, linewidth=1)
    axes.add_patch(_arrow((corner, end[1]), end))


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> FancyArrowPatch:
    return FancyArrowPatch(
        start,
        end,
        arrowstyle="-|>",
        mutation_scale=9,
        color=_INK,
        linewidth=1,
        shrinkA=0,
        shrinkB=0,
    )
