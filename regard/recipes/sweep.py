"""Sweeps: runs of a recipe over combinations of settings and seeds, whole or by halving. (no torch)

    grid       every run is trained to its end
    halving    of n combinations, with k = ceil(log2 n): all are trained to 1 / 2^k of the run, the
               better half to 2 / 2^k, the better half of these to 4 / 2^k, ..., one to its end

A run pauses after a validation and continues bit for bit, with the schedule of the whole run. A
combination is scored by the mean over its seeds of the best validation so far. What is done is read
from the folders of the runs, so that a sweep continues as they do.

Source: jamieson2016 (successive halving).
"""

import contextvars
import functools
import importlib
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import UserError
from regard.recipes.base.run import ARTIFACTS, Run
from regard.recipes.metrics.report import metric_names
from regard.system.files import read_json
from regard.system.progress import track
from regard.system.table_writer import open_table_atomically
from regard.system.terminal import table
from regard.system.verbosity import set_verbosity
from regard.system.writing import write_atomically
from regard.training.progress import fraction_of_limit


class SweepRun(NamedTuple):
    """Run of a sweep, with its combination of values by setting."""

    values: Mapping[str, str]
    run: Run
    folder: Path


Combination = Sequence[SweepRun]
"""Runs of the same settings with several seeds."""


def train_all(
    combinations: Sequence[Combination],
    *,
    halving: bool,
    threads: int | None,
    notify: Callable[[str], None],
) -> bool:
    """Train the runs, each as `regard train` does; return False if they are interrupted.

    A run that diverges is reported, and is the worst.
    Raises: UserError as training; for halving without a limit in steps or epochs.
    """
    training = importlib.import_module("regard.recipes.training")
    diverged = importlib.import_module("regard.training.loop").Diverged
    doublings = math.ceil(math.log2(len(combinations))) if halving else 0
    cost, left = 0, len(combinations)
    for number in range(doublings + 1):
        cost, left = cost + left * max(1, 2 ** (number - 1)), math.ceil(left / 2)
    for one in chain(*combinations):
        train = one.run.config.train
        if doublings and train.steps is None and train.epochs is None:
            raise UserError("--halving needs the end of a run: set --train.steps or --train.epochs")
    # Messages are shown once, though training is quiet.
    show = functools.cache(functools.partial(contextvars.copy_context().run, notify))
    noun = f"parts of 1/{2**doublings} run" if doublings else "runs"
    stages, total = _plan(combinations, doublings), cost * len(combinations[0])
    for one, until, _ in track(stages, noun, total, size=lambda stage: stage[2]):
        try:
            with set_verbosity("quiet"):
                result = training.train_run(
                    one.folder, one.run, threads=threads, notify=show, until=until
                )
        except diverged as error:
            notify(f"{one.folder.name}: {error}")
            continue
        if result.is_interrupted:
            return False
    return True


def _plan(
    combinations: Sequence[Combination], doublings: int
) -> Iterator[tuple[SweepRun, float, int]]:
    """Yield a run, the fraction to train it to, and the cost of that.

    The better half of the combinations is chosen after each fraction but the last.
    """
    for number in range(doublings + 1):
        until = 2.0 ** (number - doublings)
        for combination in combinations:
            for one in combination:
                yield one, until, max(1, 2 ** (number - 1))
        if until < 1:
            metric, maximize = _find_metric(combinations)
            scored = []
            for place, combination in enumerate(combinations):
                mean = statistics.fmean(_best(one, metric, maximize, until) for one in combination)
                scored.append((_order(mean, maximize), place))
            half = sorted(scored)[: math.ceil(len(scored) / 2)]
            combinations = [combinations[place] for _, place in sorted(half, key=lambda x: x[1])]


def _find_metric(combinations: Sequence[Combination]) -> tuple[str, bool]:
    """Return the validation metric of the recipe, and True if larger is better."""
    one, load = combinations[0][0], importlib.import_module("regard.recipes.load")
    recipe = load.create_recipe(one.run, notify=str)
    recipe.open(one.folder / ARTIFACTS)
    return recipe.metric, recipe.higher_is_better


def _curve(one: SweepRun, until: float = 1.0) -> list[dict[str, Any]]:
    """Return the validations of a run up to the first one from a fraction of it on."""
    path, lines = one.folder / "log.jsonl", list[dict[str, Any]]()
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        line, train = json.loads(text), one.run.config.train
        if line["kind"] == "validation":
            lines.append(line)
            done = fraction_of_limit(train, step=line["step"], epoch=line["epoch"])
            if done >= until:
                break
    return lines


def _best(one: SweepRun, metric: str, maximize: bool, until: float = 1.0) -> float:
    """Return the best score of a run up to a fraction; NaN without any."""
    scores = [line[metric] for line in _curve(one, until) if line[metric] is not None]
    return (max if maximize else min)(scores, default=math.nan)


def _order(mean: float, maximize: bool) -> float:
    """Return a key that sorts scores, best first and NaN last."""
    if math.isnan(mean):
        return math.inf
    return -mean if maximize else mean


def summarize(combinations: Sequence[Combination]) -> dict[str, Any]:
    """Return the scores of all combinations and runs as JSON, those trained longest and best first.

    The score of a finished run is that of its selected parameters.
    """
    metric, maximize = _find_metric(combinations)
    rows = []
    for combination in combinations:
        runs, scores = [], []
        for one in combination:
            curve, path = _curve(one), one.folder / "report.json"
            score, step = _best(one, metric, maximize), curve[-1]["step"] if curve else 0
            if path.exists():
                report = read_json(path, dict[str, Any])
                score, step = report["validation"][metric], report["training"]["steps"]
            scores.append(score)
            number = None if math.isnan(score) else score
            row = {"seed": one.run.seed, metric: number, "step": step, "finished": path.exists()}
            runs.append(row | {"folder": str(one.folder)})
        mean, finished = statistics.fmean(scores), all(row["finished"] for row in runs)
        # Patience may finish a run early.
        key = (not finished, 0 if finished else -min(row["step"] for row in runs))
        deviation = statistics.stdev(scores) if len(scores) > 1 else math.nan
        values: dict[str, Any] = {"values": dict(combination[0].values)}
        values["mean"] = None if math.isnan(mean) else mean
        values["deviation"] = None if math.isnan(deviation) else deviation
        values |= {"finished": finished, "runs": runs}
        rows.append(((*key, _order(mean, maximize)), values))
    rows.sort(key=lambda pair: pair[0])
    found = {"recipe": combinations[0][0].run.recipe, "metric": metric}
    return found | {"higher_is_better": maximize, "combinations": [row for _, row in rows]}


def format_sweep(summary: Mapping[str, Any]) -> str:
    """Return the table of a sweep."""
    metric, rows = summary["metric"], summary["combinations"]
    name = metric_names([metric]).get(metric, metric)
    cells = [[*rows[0]["values"], name, "deviation", "seeds", "steps", ""]]
    for row in rows:
        numbers = ["-" if row[key] is None else f"{row[key]:.4g}" for key in ("mean", "deviation")]
        steps = f"{statistics.fmean(one['step'] for one in row['runs']):,.0f}"
        state = "" if row["finished"] else "not finished"
        cells.append([*row["values"].values(), *numbers, str(len(row["runs"])), steps, state])
    return table(cells)


def write_summary(
    summary: Mapping[str, Any], combinations: Sequence[Combination], folder: Path
) -> None:
    """Write sweep.json, sweep.csv and curves.png to the folder of a sweep."""
    write_atomically(folder / "sweep.json", json.dumps(summary, indent=2) + "\n")
    with open_table_atomically(folder / "sweep.csv", {}) as rows:
        for row in summary["combinations"]:
            for one in row["runs"]:
                rows.write(row["values"] | one)
    metric, curves = summary["metric"], dict[str, list[list[tuple[int, float]]]]()
    for combination in combinations:
        label = ", ".join(f"{name} {value}" for name, value in combination[0].values.items())
        curves[label] = []
        for one in combination:
            lines = [line for line in _curve(one) if line[metric] is not None]
            curves[label].append([(line["step"], line[metric]) for line in lines])
    figures = importlib.import_module("regard.recipes.curves")  # imports matplotlib
    figures.plot_curves(curves, folder / "curves.png", metric_names([metric]).get(metric, metric))
