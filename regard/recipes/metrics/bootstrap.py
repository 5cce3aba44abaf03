"""Paired bootstrap: intervals of metrics, and p-values of their differences between runs.

    a sample     n of the n examples, drawn with replacement; the same ones for all runs
    interval     from the 2.5 % to the 97.5 % quantile of the metric over the samples
    p            (1 + samples with |d| - mean |d| > |difference of all|) / (1 + samples), where d is
                 the difference of a sample, as sacrebleu computes it; 1 if no d differs from 0

Source: koehn2004; efron1993, chapter 13; the p-value of sacrebleu (post2018).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from regard.system.progress import track

SEED = 12345
"""Seed of the samples: that of sacrebleu."""


class Estimate(NamedTuple):
    """Metric of a run, its 95 % interval, and the p-value of its difference to the first run."""

    score: float
    low: float
    high: float
    p: float | None
    """None for the first run."""


def paired_bootstrap(
    rescores: Sequence[Callable[[Sequence[int]], Mapping[str, Any]]], count: int, *, samples: int
) -> dict[str, list[Estimate]]:
    """Return the estimates of each run, by name of the metric.

    rescores: of each run, a function that returns the metrics of examples by index; metrics that
              are not numbers, or not of every sample, are left out.
    """
    generator = np.random.default_rng(SEED)
    whole = [rescore([*range(count)]) for rescore in rescores]
    tables = []
    for _ in track(range(samples), "samples of the bootstrap", samples, size=lambda _: 1):
        draw: Any = generator.choice(count, size=count)
        tables.append([rescore(draw) for rescore in rescores])
    estimates: dict[str, list[Estimate]] = {}
    for name, value in whole[0].items():
        if not isinstance(value, float) or not all(
            name in row for table in tables for row in table
        ):
            continue
        drawn = np.array([[row[name] for row in table] for table in tables])
        estimates[name] = []
        for run, scores in enumerate(drawn.T):
            ordered, cut = np.sort(scores), samples // 40
            p, score = None, whole[run][name]
            if run > 0:
                differences = np.abs(scores - drawn[:, 0])
                is_larger = differences - differences.mean() > abs(score - whole[0][name])
                p = float(is_larger.sum() + 1) / (samples + 1) if differences.any() else 1.0
            low, high = float(ordered[cut]), float(ordered[samples - cut - 1])
            estimates[name].append(Estimate(score, low, high, p))
    return estimates
