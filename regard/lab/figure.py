"""Figure of a claim: its measures by arm and seed, and its hypotheses beside their margins."""

import math
from pathlib import Path

from matplotlib.axes import Axes

from regard.lab.protocol import Claim, Difference, Outcome, Results, interval
from regard.lab.registry import CLAIMS
from regard.look.figures.canvas import GRID, INK, PALE, open_figure

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_LINES = ("-", "--", ":", "-.")
_VERDICT_COLORS = {"holds": "#1a7f5a", "refuted": "#c0392b"}


def plot_claim(name: str, claim: Claim, results: Results, outcome: Outcome, path: Path) -> None:
    """Plot the measures of all arms and seeds, and the hypotheses; an existing file is replaced."""
    panels = _panels(results)
    ratios = [2.6 if _is_curve(points) else 2.0 for points in panels]
    ratios.append(0.5 * len(outcome.hypotheses) + 0.4)
    with open_figure(path, overwrite=True) as figure:
        figure.set_layout_engine("constrained")
        figure.set_size_inches(7.1, sum(ratios) + 0.5)
        *tops, bottom = figure.subplots(len(ratios), height_ratios=ratios)
        verdict = "" if outcome.verdict == "none" else f": {outcome.verdict}"
        figure.suptitle(f"{CLAIMS[name]}{verdict}", fontsize=10, x=0.01, ha="left", color=INK)
        for axes, points in zip(tops, panels, strict=True):
            _draw_panel(axes, points, claim, results)
        if len(claim.arms) > 1:
            tops[0].legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        _draw_hypotheses(bottom, claim, outcome)


def _panels(results: Results) -> list[dict[str, float]]:
    """Return measures and their X of each panel: of one curve, or without curves all measures."""
    panels: dict[str, dict[str, float]] = {}
    for measure in next(iter(next(iter(results.values())).values())):
        title, _, x = measure.rpartition(" at ")
        panels.setdefault(title, {})[measure] = float(x) if title else math.nan
    return [points for title, points in panels.items() if title or len(panels) == 1]


def _is_curve(points: dict[str, float]) -> bool:
    return len(points) > 2 and math.isfinite(sum(points.values()))


def _draw_panel(axes: Axes, points: dict[str, float], claim: Claim, results: Results) -> None:
    places = list(points.values())
    for number, arm in enumerate(claim.arms):
        color, style = _COLORS[number % len(_COLORS)], _LINES[number % len(_LINES)]
        if not _is_curve(points):  # the arms of a measure beside each other
            style, shift = "_", 0.6 * ((number + 0.5) / len(claim.arms) - 0.5)
            places = [index + shift for index in range(len(points))]
        means = []
        for x, measure in zip(places, points, strict=True):
            values = [numbers[measure] for numbers in results[arm].values()]
            axes.plot([x] * len(values), values, "o", color=color, markersize=2.5, alpha=0.5)
            low, high = interval(values)
            if high - low < math.inf:
                axes.plot([x, x], [low, high], color=color, linewidth=1)
            means.append(sum(values) / len(values))
        width = max(1.4, 2.9 - 0.5 * number)  # so that equal curves show
        axes.plot(places, means, style, color=color, markersize=12, linewidth=width, label=arm)
    axes.grid(color=GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, color=PALE)
    axes.yaxis.get_offset_text().set_fontsize(8)
    title = next(iter(points)).rpartition(" at ")[0]
    labels = [f"{x:g}" for x in points.values()] if title else list(points)
    axes.set_ylabel(title, fontsize=8)
    axes.set_xlabel(claim.x_name if title else "", fontsize=8)
    if _is_curve(points) and places[-1] > 50 * places[0] > 0:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(places if _is_curve(points) else range(len(points)), labels)


def _draw_hypotheses(axes: Axes, claim: Claim, outcome: Outcome) -> None:
    """Draw each interval and its margin, divided by the largest magnitude of the row."""
    lowest = 0.0
    for row, part in enumerate(outcome.hypotheses):
        hypothesis = claim.hypotheses[row]
        if isinstance(hypothesis, Difference):
            limits = [hypothesis.margin]
        else:
            limits = [x for x in (hypothesis.at_least, hypothesis.at_most) if math.isfinite(x)]
        ends = [x for x in (part.low, part.high, *part.values) if math.isfinite(x)]
        scale = max(map(abs, (*limits, *ends))) or 1
        lowest = min(lowest, *(x / scale for x in (*limits, *ends)))
        color = _VERDICT_COLORS.get(part.verdict, PALE)
        if math.isfinite(part.low):
            axes.plot([part.low / scale, part.high / scale], [row, row], color=color, linewidth=3)
        circles = [value / scale for value in part.values]
        axes.plot(circles, [row] * len(circles), "o", markersize=3.5, fillstyle="none", color=color)
        for limit in limits:
            axes.plot(limit / scale, row, "|", color=INK, markersize=13, markeredgewidth=1.4)
        axes.text(1.04, row, part.verdict, fontsize=8, va="center", color=color)
        place = axes.get_yaxis_transform()
        axes.text(0, row - 0.32, part.text, fontsize=7.5, va="bottom", transform=place)
    axes.axvline(0, color=GRID, linewidth=0.8, zorder=0)
    axes.set(ylim=(len(claim.hypotheses) - 0.6, -0.9), xticks=[], yticks=[])
    axes.set_xlim(lowest - 0.02, 1.02)
    axes.spines[:].set_visible(False)
    text = "bar: interval (bound: range); circles: seeds; black: margin or bound; gray: 0; "
    text += "each row to its own scale"
    axes.set_xlabel(text, fontsize=7.5, color=PALE)
