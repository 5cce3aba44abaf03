"""The table of a decoding: rates, ratios to Transformers, share of equal outputs, and the lines that sum it up.

A contestant's numbers are read from its name: bfloat16 or int8 if it says so, else float32; "2x1" (two workers of one
thread) has two sentences or batches in flight, all others are one stream.
"""

import statistics
from collections.abc import Sequence

from benchmarks.peers.options import Report

__all__ = ["tell"]

KINDS = ("float32", "bfloat16", "int8")
SEVERAL = "2x1"


def tell(
    report: Report,
    title: str,
    rates: dict[str, list[float]],
    said: dict[str, list[list[int]]],
    *,
    together: Sequence[str],
) -> None:
    """One table; outputs are compared with those of our first, as many as both have.

    together: contestants that took turns, whose ratios to Transformers are those of each round; others' are of medians.
    """
    median = {name: statistics.median(values) for name, values in rates.items()}
    best = max((name for name in rates if name.startswith("Transformers")), key=lambda name: median[name])
    reference = said[next(name for name in rates if name.startswith("regard"))]
    report.say()
    report.say(f"  {title} min, median, max; times Transformers at its best; same outputs as our first")
    ratios = {}
    for name, values in rates.items():
        pairs = [one / other for one, other in zip(values, rates[best], strict=True)] if name in together else []
        ratios[name] = statistics.median(pairs) if pairs else median[name] / median[best]
        count = min(len(said[name]), len(reference))
        same = sum(one == other for one, other in zip(said[name][:count], reference[:count], strict=True)) / count
        spread = f"{min(values):9,.5g} {median[name]:9,.5g} {max(values):9,.5g}"
        report.say(f"    {name:30} {spread}   {ratios[name]:7.2f} x   {same:4.0%}")
    for kind in KINDS:
        for streams in ("one stream", "any workers"):
            line = _summary(median, ratios, kind, streams)
            if line:
                report.say(line)


def _summary(median: dict[str, float], ratios: dict[str, float], kind: str, streams: str) -> str | None:
    """Our best of a kind, beside Transformers and beside the best of CTranslate2 of the same kind."""

    def best(whose: str) -> str | None:
        names = [name for name in median if name.startswith(whose) and _kind(name) == kind]
        names = [name for name in names if streams == "any workers" or SEVERAL not in name]
        return max(names, key=lambda name: median[name], default=None)

    ours, other = best("regard"), best("CTranslate2")
    if ours is None:
        return None
    line = f"  -> {kind}, {streams}: {ours}: {ratios[ours]:.2f} times Transformers"
    return line + (f", {median[ours] / median[other]:.2f} times {other}" if other is not None else "")


def _kind(name: str) -> str:
    return next((kind for kind in KINDS if kind in name), "float32")
