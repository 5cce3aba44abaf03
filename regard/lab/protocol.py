"""Protocol of the lab: what a claim is, how its trials are run, and what the numbers decide.

A claim is a module with CLAIM and `run`, which returns the numbers of a trial: with the same names
for all arms, those of a curve `NAME at X`. Its docstring and that of `run` are on the page.

A trial is the experiment with one arm (a variant of the model), one seed and one learning rate.
Trials of one seed are pairs: all arms get the same data, and shared parts the same first weights.
The learning rate of each arm is the best of the claim's rates on a seed of its own.

    differences   d_s = measure(more, s) - measure(less, s) of each seed s; with their mean and the
                  95 % interval of the mean (Student's t): above the margin it holds, below it is
                  refuted, and else undecided
    bounds        measure(arm, s) within a bound for every seed s; one outside is a counterexample
    controls      what must come out, or must not, for the experiment to be able to decide

The claim is invalid if a control fails, refuted if one of its hypotheses is, and holds if all do.
Source of the interval: Student 1908, "The probable error of a mean", for differences of pairs.
"""

import importlib
import math
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch
from scipy.special import stdtrit

from regard.errors import UserError
from regard.lab.registry import module_of
from regard.system.verbosity import set_verbosity

Verdict = Literal["holds", "refuted", "undecided", "invalid", "none"]
Numbers = dict[str, float]
TUNING_SEED = 1_000_003
"""Seed on which the learning rates are chosen."""
EXACT = 1e-10
"""Largest error of equal numbers in float64."""


@dataclass(frozen=True)
class Trial:
    """One run of an experiment."""

    arm: str
    seed: int
    rate: float = 0.0
    """Learning rate; 0 for experiments without training."""
    sabotage: bool = False
    """Break the mechanism of the claim, as `Claim.sabotage` says."""
    quick: bool = False
    """Train a tenth of the steps."""


@dataclass(frozen=True)
class Difference:
    """Hypothesis: a measure is larger with one arm than with another, by more than a margin."""

    measure: str
    more: str
    less: str
    margin: float

    def __str__(self) -> str:
        return f"{self.measure}: {self.more} - {self.less} > {self.margin:g}"

    def evaluate(self, numbers: "Results") -> "Part":
        more, less = numbers[self.more], numbers[self.less]
        values = [more[seed][self.measure] - less[seed][self.measure] for seed in more]
        low, high = interval(values)
        verdict: Verdict = "undecided"
        if low > self.margin:
            verdict = "holds"
        elif high < self.margin:
            verdict = "refuted"
        return Part(str(self), values, low, high, verdict)


@dataclass(frozen=True)
class Bound:
    """Hypothesis, or control: a measure of an arm is within bounds, for every seed."""

    measure: str
    arm: str
    at_least: float = -math.inf
    at_most: float = math.inf

    def __str__(self) -> str:
        low = f"{self.at_least:g} <= " if self.at_least > -math.inf else ""
        high = f" <= {self.at_most:g}" if self.at_most < math.inf else ""
        return f"{low}{self.measure} ({self.arm}){high}"

    def evaluate(self, numbers: "Results") -> "Part":
        values = [measures[self.measure] for measures in numbers[self.arm].values()]
        is_inside = all(self.at_least <= value <= self.at_most for value in values)
        verdict: Verdict = "holds" if is_inside else "refuted"
        return Part(str(self), values, min(values), max(values), verdict)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Claim of the lectures with its experiment."""

    entry: tuple[str, str]
    """Key of the claim in docs/lectures.md, such as B.10, and words of that entry."""
    arms: Sequence[str]
    sabotage: Mapping[str, str]
    """Defects of arms, or of "all", in trials with `sabotage`, which must change the verdict."""
    hypotheses: Sequence[Difference | Bound]
    controls: Sequence[Bound] = ()
    rates: Sequence[float] = ()
    """Learning rates to choose from; empty for experiments without training."""
    tuned_by: str = "accuracy"
    """The measure that is largest with the best learning rate."""
    x_name: str = ""
    """Name of the axis of the curve's X."""
    remark: str = ""
    """Interpretation of the result, and its limits."""


Results = Mapping[str, Mapping[int, Numbers]]
"""Numbers of each arm and seed."""


class Part(NamedTuple):
    """Outcome of a hypothesis or control; low, high: interval, or smallest and largest value."""

    text: str
    values: list[float]
    low: float
    high: float
    verdict: Verdict


class Outcome(NamedTuple):
    """Outcome of a claim; none: a quick run, or one seed."""

    verdict: Verdict
    hypotheses: list[Part]
    controls: list[Part]


def load_module(name: str) -> ModuleType:
    """Return the module of a claim. Raises: UserError with the nearest names for an unknown one."""
    return importlib.import_module(module_of(name))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean, m -+ t s / sqrt(n); infinite for one value."""
    count = len(values)
    if count < 2:
        return -math.inf, math.inf
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = float(stdtrit(count - 1, 0.975)) * math.sqrt(variance / count)
    return mean - half, mean + half


def decide(claim: Claim, numbers: Results, *, quick: bool = False) -> Outcome:
    """Return what the numbers of all arms and seeds decide; one seed decides nothing."""
    hypotheses = [one.evaluate(numbers) for one in claim.hypotheses]
    controls = [one.evaluate(numbers) for one in claim.controls]
    verdicts = {part.verdict for part in hypotheses}
    if quick or len(next(iter(numbers.values()))) < 2:
        hypotheses = [part._replace(verdict="none") for part in hypotheses]
        controls = [part._replace(verdict="none") for part in controls]
        verdict: Verdict = "none"
    elif any(part.verdict == "refuted" for part in controls):
        verdict = "invalid"
    elif "refuted" in verdicts:
        verdict = "refuted"
    else:
        verdict = "undecided" if "undecided" in verdicts else "holds"
    return Outcome(verdict, hypotheses, controls)


def run_trial(name: str, trial: Trial) -> Numbers:
    """Run a trial with one CPU thread, so that its numbers do not depend on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]), set_verbosity("quiet"):
            torch.manual_seed(trial.seed)
            return {key: float(value) for key, value in load_module(name).run(trial).items()}
    finally:
        torch.set_num_threads(threads)


@contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that run trials side by side; an error or Ctrl-C ends them at once."""
    with TemporaryDirectory(prefix="regard-lab-") as folder:
        pool = ProcessPoolExecutor(count, get_context("spawn"), _start_worker, (folder,))
        try:
            yield pool
        except BaseException:
            for process in active_children():
                process.kill()  # training would catch another signal, and finish
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker(folder: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process
    tempfile.tempdir = folder


def run_all(
    name: str, trials: Sequence[Trial], pool: ProcessPoolExecutor | None
) -> Iterator[tuple[Trial, Numbers]]:
    """Yield trials with their numbers as they finish; without a pool one after the other."""
    if pool is None:
        for trial in trials:
            yield trial, run_trial(name, trial)
        return
    futures = {pool.submit(run_trial, name, trial): trial for trial in trials}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool:
        problem = f"{name}: a process of the lab was killed; is there enough memory?"
        raise UserError(f"{problem} The same command continues") from None


def choose_rates(
    name: str, claim: Claim, pool: ProcessPoolExecutor | None, **options: bool
) -> dict[str, float]:
    """Return the best learning rate of each arm on the tuning seed; 0 without training."""
    rates = claim.rates or (0.0,)
    if len(rates) == 1:
        return dict.fromkeys(claim.arms, rates[0])
    trials = [Trial(arm, TUNING_SEED, rate, **options) for arm in claim.arms for rate in rates]
    scores: dict[str, dict[float, float]] = {arm: {} for arm in claim.arms}
    for trial, numbers in run_all(name, trials, pool):
        scores[trial.arm][trial.rate] = numbers[claim.tuned_by]
    # Of equal scores the first rate, whatever the order in which trials finish.
    return {arm: max(rates, key=scores[arm].__getitem__) for arm in claim.arms}


def as_results(claim: Claim, finished: Mapping[str, Any]) -> Results:
    """Return the numbers (saved by `ARM/SEED`) of the seeds of which all arms are finished."""
    seeds = sorted({int(key.rpartition("/")[2]) for key in finished})
    whole = [s for s in seeds if all(f"{arm}/{s}" in finished for arm in claim.arms)]
    return {arm: {seed: finished[f"{arm}/{seed}"] for seed in whole} for arm in claim.arms}
