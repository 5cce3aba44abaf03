"""Training steps of contestants in turns: tokens a second and peak memory of each.

bfloat16 (autocast), fused Adam. Missing libraries are left out.
"""

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.gpu.measure import Setting, peak_memory, succeeds
from benchmarks.peers.options import Report
from benchmarks.peers.rounds import OURS, report_ratios, take_turns
from benchmarks.peers.stepping import Step

PRECISION = "bfloat16"
LIBRARIES = {"Transformers": "transformers", "x-transformers": "x_transformers"}
"""Modules of the libraries that a name of a contestant begins with."""


def select_installed(names: Iterable[str]) -> list[str]:
    """Return the contestants whose library is installed, and report the others."""
    found = []
    for name in names:
        library = LIBRARIES.get(name.split(",")[0], "torch")
        if importlib.util.find_spec(library) is None:
            print(f"    {name} is left out: {library} is not installed")
        else:
            found.append(name)
    return found


class _Contestant:
    """Training step, and the peak memory in MB of building the model and three steps."""

    def __init__(self, make: Callable[[], Step], batches: Sequence[Any], setting: Setting):
        self.make, self.batches, self.setting = make, list(batches), setting

    def begin(self) -> None:
        self.peak = peak_memory(self._first, self.setting)

    def _first(self) -> None:
        self.step = self.make()
        for number in range(3):
            self.step(self.batches[number % len(self.batches)])

    def turn(self, number: int) -> None:
        for batch in self.batches:
            self.step(batch)
        self.setting.synchronize()


def compare_steps(
    makers: Mapping[str, Callable[[], Step]], batches: Sequence[Any], tokens: int, setting: Setting
) -> tuple[dict[str, float], dict[str, float]]:
    """Report a line per contestant; return the times relative to ours, and the peaks in MB.

    makers:  functions that build a contestant on the device, and return its training step.
    batches: batches of a round, with `tokens` target tokens; ours are moved to the device in each
             step, as in training, those of the peers before.
    """
    moved = [batch.to(setting.device) for batch in batches]
    contestants = {}
    for name, make in makers.items():
        contestant = _Contestant(make, batches if name.startswith(OURS) else moved, setting)
        if succeeds(name, contestant.begin, setting, times=1):
            contestants[name] = contestant
    turns = {name: contestant.turn for name, contestant in contestants.items()}
    report = Report(None)
    times = take_turns(turns, rounds=1 if setting.quick else 3, report=report)
    peaks = {name: contestant.peak for name, contestant in contestants.items()}
    print("    tokens/s min, median, max; times of it / regard; peak memory of model and steps")

    def extra(name: str, rate: float) -> str:
        return f" {peaks[name]:10,.0f} MB"

    return report_ratios(report, times, float(tokens), unit="tokens", extra=extra), peaks
