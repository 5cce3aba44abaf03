"""Report of decoding: rates, ratios to Transformers, share of equal outputs, and summary lines.

The precision of a contestant is in its name (bfloat16 or int8, otherwise float32); "2x1" (two
workers of one thread) decodes two sentences or batches in parallel, all others are one stream.
"""

import statistics
from collections.abc import Sequence

from benchmarks.peers.options import Report

__all__ = ["report_decoding"]

KINDS = ("float32", "bfloat16", "int8")
SEVERAL = "2x1"


def report_decoding(
    report: Report,
    title: str,
    rates: dict[str, list[float]],
    outputs: dict[str, list[list[int]]],
    *,
    together: Sequence[str],
) -> None:
    """Report one table; outputs are compared with those of our first contestant, as many as both
    have.

    together: contestants that took turns, whose ratios to Transformers are taken by round; others'
              of medians.
    """
    median = {name: statistics.median(values) for name, values in rates.items()}
    best = max(
        (name for name in rates if name.startswith("Transformers")), key=lambda name: median[name]
    )
    reference = outputs[next(name for name in rates if name.startswith("regard"))]
    report.write()
    report.write(
        f"  {title} min, median, max; times Transformers at its best; same outputs as our first"
    )
    ratios = {}
    for name, values in rates.items():
        pairs = (
            [rate / baseline for rate, baseline in zip(values, rates[best], strict=True)]
            if name in together
            else []
        )
        ratios[name] = statistics.median(pairs) if pairs else median[name] / median[best]
        count = min(len(outputs[name]), len(reference))
        same = (
            sum(
                output == expected
                for output, expected in zip(outputs[name][:count], reference[:count], strict=True)
            )
            / count
        )
        spread = f"{min(values):9,.5g} {median[name]:9,.5g} {max(values):9,.5g}"
        report.write(f"    {name:30} {spread}   {ratios[name]:7.2f} x   {same:4.0%}")
    for kind in KINDS:
        for streams in ("one stream", "any workers"):
            line = _summary(median, ratios, kind, streams)
            if line:
                report.write(line)


def _summary(
    median: dict[str, float], ratios: dict[str, float], kind: str, streams: str
) -> str | None:
    """Compare our best contestant of a precision with Transformers and with the best of
    CTranslate2."""

    def best(prefix: str) -> str | None:
        names = [name for name in median if name.startswith(prefix) and _kind(name) == kind]
        names = [name for name in names if streams == "any workers" or SEVERAL not in name]
        return max(names, key=lambda name: median[name], default=None)

    ours, other = best("regard"), best("CTranslate2")
    if ours is None:
        return None
    line = f"  -> {kind}, {streams}: {ours}: {ratios[ours]:.2f} times Transformers"
    return line + (
        f", {median[ours] / median[other]:.2f} times {other}" if other is not None else ""
    )


def _kind(name: str) -> str:
    return next((kind for kind in KINDS if kind in name), "float32")
