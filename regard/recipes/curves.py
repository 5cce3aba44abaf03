"""Figure of validation curves: a line for each run, a color for each combination of settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from regard.look.figures.canvas import GRID, open_figure

_LINES = ("-", "--", ":", "-.")


def plot_curves(
    curves: Mapping[str, Sequence[Sequence[tuple[int, float]]]], path: Path, name: str
) -> None:
    """Plot a metric by step of runs by label; an existing file is replaced."""
    with open_figure(path, overwrite=True) as figure:
        figure.set_layout_engine("constrained")
        figure.set_size_inches(7.1, 4)
        axes = figure.subplots()
        for number, (label, runs) in enumerate(curves.items()):
            style = {"color": f"C{number % 10}", "linestyle": _LINES[number // 10 % 4]}
            for i, points in enumerate(runs):
                x, y = [step for step, _ in points], [value for _, value in points]
                axes.plot(x, y, marker=".", label="" if i else label, **style)
        axes.grid(color=GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlabel("step")
        axes.set_ylabel(name)
        if any(curves):
            axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
