"""Bar chart of where the time goes: a panel for training and one for inference, a bar for each
group."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard.look.figures.alignment import plot_style
from regard.look.figures.labels import families_for, readable
from regard.look.figures.output import check_path
from regard.look.figures.results import write_picture

_BAR, _INK, _PALE, _GRID = "#2971c6", "#1f2933", "#66727f", "#e6ebf0"
_ROW, _AROUND, _WIDTH = 0.26, 0.95, 5.2


def draw_shares(
    panels: Sequence[tuple[str, Sequence[dict[str, Any]]]],
    path: Path,
    *,
    title: str,
    overwrite: bool,
) -> Path:
    """Write the chart as .png, .svg or .pdf.

    panels: title and groups of each panel, in the form of the entry `profile` of the results.
    Raises: UserError for another suffix, a missing folder, or an existing file (unless overwrite).
    """
    check_path(path, overwrite)
    rows = max(len(groups) for _, groups in panels)
    with plot_style(families_for([title, *(name for name, _ in panels)])):
        figure = Figure(figsize=(_WIDTH * len(panels), _AROUND + _ROW * rows), layout="constrained")
        figure.suptitle(readable(title, max_length=200, spaces=" "), fontsize=9, color=_INK)
        most = max(group["percent"] for _, groups in panels for group in groups)
        for axes, (name, groups) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            _draw(axes, name, groups, most=most, rows=rows)
        return write_picture(figure, path, overwrite=overwrite)


def _draw(
    axes: Axes, name: str, groups: Sequence[dict[str, Any]], *, most: float, rows: int
) -> None:
    axes.set_title(readable(name, max_length=80, spaces=" "), fontsize=9, color=_INK, loc="left")
    percents = [group["percent"] for group in groups]
    axes.barh(range(len(groups)), percents, height=0.7, color=_BAR)
    for row, percent in enumerate(percents):
        axes.annotate(
            f"{percent:.1f}",
            (percent, row),
            (3, 0),
            textcoords="offset points",
            fontsize=7,
            va="center",
        )
    axes.set_yticks(
        range(len(groups)), [group["group"] for group in groups], fontsize=8, color=_INK
    )
    axes.set(xlim=(0, 1.12 * most), ylim=(rows - 0.5, -0.5))
    axes.set_xlabel("% of the time", fontsize=8, color=_PALE)
    axes.tick_params(axis="both", length=0)
    axes.tick_params(axis="x", labelsize=7, labelcolor=_PALE)
    axes.grid(axis="x", color=_GRID)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
