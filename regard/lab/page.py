"""Page of a claim in Markdown, which is also what the terminal shows."""

import math
from typing import Any

from regard.lab.protocol import Claim, Outcome, Part, Results, interval, load_module
from regard.lab.registry import CLAIMS, module_of

MEANING = {
    "holds": "every hypothesis holds",
    "refuted": "a hypothesis is refuted",
    "undecided": "an interval includes its margin",
    "invalid": "a control failed, so the experiment decides nothing",
    "none": "nothing can be decided by a quick run, or by one seed",
}


def number(value: float) -> str:
    """Return a number with four significant digits."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"


def format_page(
    name: str, claim: Claim, results: Results, outcome: Outcome, record: dict[str, Any]
) -> str:
    """Return the page of a claim."""
    key, quote = claim.entry
    seeds = ", ".join(map(str, record["seeds"]))
    options = "" if seeds == "0, 1, 2, 3, 4" else f" --seeds {seeds.replace(',', '')}"
    options += " --quick" if record["quick"] else ""
    module = load_module(name)
    experiment = " ".join(str(module.__doc__).split())
    measures = " ".join(str(module.run.__doc__).split()).removeprefix("Return ")
    paragraphs = [
        f"# {name}: {outcome.verdict}",
        f"**Claim.** {CLAIMS[name]}. Lectures, [{key}](../lectures.md#{key}): *{quote}*",
        f"**Experiment.** {experiment} Measured: {measures} Seeds {seeds}. "
        f"Code: [{name}](../../{module_of(name).replace('.', '/')}.py).",
        f"    regard lab {name}{options}",
        f"**Verdict: {outcome.verdict}**, {MEANING[outcome.verdict]}.\n{claim.remark}".rstrip(),
        f"![{CLAIMS[name]}]({name}.svg)",
        _markdown(["hypothesis", "result", "verdict"], _rows(outcome.hypotheses)),
    ]
    if outcome.controls:
        paragraphs.append(_markdown(["control", "result", "verdict"], _rows(outcome.controls)))
    paragraphs.append(_markdown(["mean over the seeds", *claim.arms], _means(claim, results)))
    if any(record["rates"].values()):
        rates = ", ".join(f"{arm} {rate:g}" for arm, rate in record["rates"].items())
        paragraphs.append(f"[Learning rates](README.md#training), chosen on another seed: {rates}.")
    defects = "; ".join(f"{arm}: {defect}" for arm, defect in claim.sabotage.items())
    paragraphs += [
        f"**Sabotage.** {defects}. A test checks that the verdict changes.",
        f"{record['date']}, {record['processor']}, torch {record['torch']}, "
        f"{record['seconds']:.0f} s. Differences have the 95 % interval of their mean over the "
        "seeds; bounds the smallest and the largest value.",
    ]
    return "\n\n".join(paragraphs) + "\n"


def _rows(parts: list[Part]) -> list[list[str]]:
    rows = []
    for part in parts:
        result = f"{number(part.low)} .. {number(part.high)}"
        if part.low == -math.inf:
            result = f"{number(part.values[0])}, no interval of one seed"
        rows.append([part.text, result, part.verdict])
    return rows


def _means(claim: Claim, results: Results) -> list[list[str]]:
    """Return the mean and the half width of the 95 % interval of each measure and arm."""
    rows = []
    for measure in next(iter(next(iter(results.values())).values())):
        cells = []
        for arm in claim.arms:
            values = [numbers[measure] for numbers in results[arm].values()]
            low, high = interval(values)
            mean = number(math.fsum(values) / len(values))
            spread = f" \u00b1 {(high - low) / 2:.2g}" if 0 < high - low < math.inf else ""
            cells.append(mean + spread)
        rows.append([measure, *cells])
    return rows


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    """Return a table whose columns are aligned as text, too."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(map(str.ljust, cells, widths))} |" for cells in lines)
