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
    """Plot the curves `NAME at X`, or the numbers of each seed, and the hypotheses; an existing
    file is replaced.
    """
    panels = _panels(results)
    with open_figure(path, overwrite=True) as figure:
        figure.set_layout_engine("constrained")
        height = 2.6 * len(panels) + 0.5 * len(outcome.hypotheses) + 0.9
        figure.set_size_inches(7.1, height)
        ratios = [2.6] * len(panels) + [0.5 * len(outcome.hypotheses) + 0.4]
        *tops, bottom = figure.subplots(len(panels) + 1, 1, height_ratios=ratios, squeeze=False)[
            :, 0
        ]
        verdict = "" if outcome.verdict == "none" else f": {outcome.verdict}"
        figure.suptitle(f"{CLAIMS[name]}{verdict}", fontsize=10, x=0.01, ha="left", color=INK)
        for axes, (title, points) in zip(tops, panels.items(), strict=True):
            _draw_panel(axes, title, points, claim, results)
        _draw_hypotheses(bottom, claim, outcome)


def _panels(results: Results) -> dict[str, list[tuple[float, str]]]:
    """Return the measures of each panel: of a curve (x, name), or all that are of no curve."""
    measures = next(iter(next(iter(results.values())).values()))
    panels: dict[str, list[tuple[float, str]]] = {}
    for measure in measures:
        title, _, x = measure.rpartition(" at ")
        try:
            panels.setdefault(title, []).append((float(x), measure))
        except ValueError:
            panels.setdefault("", []).append((math.nan, measure))
    return {title: points for title, points in panels.items() if title or len(panels) == 1}


def _draw_panel(
    axes: Axes, title: str, points: list[tuple[float, str]], claim: Claim, results: Results
) -> None:
    for number, arm in enumerate(claim.arms):
        color, xs, means = _COLORS[number % len(_COLORS)], [], []
        for index, (x, measure) in enumerate(points):
            values = [numbers[measure] for numbers in results[arm].values()]
            at = x if title else index + 0.6 * ((number + 0.5) / len(claim.arms) - 0.5)
            axes.plot([at] * len(values), values, "o", color=color, markersize=2.5, alpha=0.5)
            low, high = interval(values)
            if high - low < math.inf:
                axes.plot([at, at], [low, high], color=color, linewidth=1)
            xs.append(at)
            means.append(sum(values) / len(values))
        style = _LINES[number % len(_LINES)] if title else "_"
        axes.plot(xs, means, style, color=color, markersize=12, linewidth=1.4, label=arm)
    axes.grid(color=GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, color=PALE)
    if title:
        axes.set_xlabel(claim.x_name, fontsize=8)
        axes.set_ylabel(title, fontsize=8)
        if points[-1][0] > 20 * points[0][0] > 0:
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.set_xticks([x for x, _ in points], [f"{x:g}" for x, _ in points])
    else:
        axes.set_xticks(range(len(points)), [measure for _, measure in points])
    if len(claim.arms) > 1:
        axes.legend(fontsize=8, frameon=False)


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
        style = {"markersize": 3.5, "fillstyle": "none", "color": color}
        axes.plot(circles, [row] * len(circles), "o", **style)
        for limit in limits:
            axes.plot(limit / scale, row, "|", color=INK, markersize=13, markeredgewidth=1.4)
        axes.text(1.04, row, part.verdict, fontsize=8, va="center", color=color)
        place = axes.get_yaxis_transform()
        axes.text(0, row - 0.32, part.text, fontsize=7.5, va="bottom", transform=place)
    axes.axvline(0, color=GRID, linewidth=0.8, zorder=0)
    axes.set(ylim=(len(claim.hypotheses) - 0.6, -0.9), xticks=[], yticks=[])
    axes.set_xlim(lowest - 0.02, 1.02)
    axes.spines[:].set_visible(False)
    text = "bar: interval; circles: seeds; line: margin or bound; each row has a scale of its own"
    axes.set_xlabel(text, fontsize=7.5, color=PALE)
