"""Timing of contestants that take turns, their ratios, and the load of other processes.

    ratio of a round = time of a contestant / time of ours, both in that round        reported: the
    median of the rounds

Each round starts with another contestant. The CPU use of other processes in the meantime is read
from Linux.
"""

import ctypes
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.peers.options import Options, Report
from regard.system.allocator import keep_freed_memory

__all__ = [
    "OURS",
    "Times",
    "measure_growth",
    "measure_growth_alone",
    "product_rate",
    "report_ratios",
    "take_turns",
]

OURS = "regard"
"""Prefix of the names of our contestants."""

Turn = Callable[[int], object]
"""Function that runs a contestant's work of a round, given its number."""


class Times(NamedTuple):
    """Seconds of each contestant in each round."""

    seconds: dict[str, list[float]]
    disturbed: float
    """Average number of cores used by other processes."""


def take_turns(
    contestants: Mapping[str, Turn], *, rounds: int, warmup: int = 1, report: Report | None = None
) -> Times:
    """Time the rounds; a contestant that fails is reported and left out."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    busy, own_time, start_time = _busy(), _own(), time.perf_counter()
    for number in range(warmup + rounds):
        if number == warmup:
            busy, own_time, start_time = _busy(), _own(), time.perf_counter()
        names = list(seconds)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = time.perf_counter()
            try:
                contestants[name](number)
            except (
                Exception
            ) as error:  # third-party code may raise anything; the other results are still valid
                if name.startswith(OURS) or report is None:
                    raise
                report.write(
                    f"    {name} left: {type(error).__name__}: {str(error).splitlines()[0][:160]}"
                )
                del seconds[name]
                continue
            if number >= warmup:
                seconds[name].append(time.perf_counter() - start)
    other_time = (_busy() - busy) - (_own() - own_time)
    return Times(seconds, max(0.0, other_time) / max(time.perf_counter() - start_time, 1e-9))


def report_ratios(
    report: Report,
    times: Times,
    work: Sequence[float] | float,
    *,
    unit: str,
    ours: str = OURS,
    extra: Callable[[str, float], str] = lambda name, rate: "",
) -> dict[str, float]:
    """Report a line per contestant with its rate and the ratio of its time to ours; return the
    ratios.

    work: units in each round, or in every round. extra(name, median rate): additional text for the
          line.
    """
    spread, ratios = {}, {}
    for name, seconds in times.seconds.items():
        units = [work] * len(seconds) if isinstance(work, int | float) else work
        rates = sorted(n / s for n, s in zip(units, seconds, strict=True))
        spread[name] = f"{rates[0]:9,.5g} {statistics.median(rates):9,.5g} {rates[-1]:9,.5g}"
        pairs = sorted(
            s / reference for s, reference in zip(seconds, times.seconds[ours], strict=True)
        )
        ratios[name] = statistics.median(pairs)
        text = f"{ratios[name]:6.2f} ({pairs[0]:.2f}-{pairs[-1]:.2f})"
        report.write(
            f"    {name:34} {spread[name]}   {text:22}{extra(name, statistics.median(rates))}"
        )
    peers = {name: ratio for name, ratio in ratios.items() if not name.startswith(OURS)}
    if peers:
        best = min(peers, key=lambda name: peers[name])
        report.write(
            f"  -> {ours}: {peers[best]:.2f} times the best peer ({best}) in {unit}/s, median of "
            f"{len(times.seconds[ours])} rounds; other processes used {times.disturbed:.2f} cores"
        )
    return ratios


def product_rate(dtype: torch.dtype, size: int = 2048, *, seconds: float = 1.0) -> float:
    """Return the median FLOP/s of torch.mm for two square matrices."""
    first, second = (torch.randn(size, size).to(dtype) for _ in range(2))
    out, times = torch.empty(size, size, dtype=dtype), []
    for _ in range(2):
        torch.mm(first, second, out=out)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        torch.mm(first, second, out=out)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(times)


def measure_growth(
    first: Callable[[], object], work: Callable[[], object], *, keep_freed: bool
) -> float:
    """Return the growth in MB of the peak memory of this process in `work`, after a smaller warm-up
    `first`.

    kept: keep memory that `work` frees in the process. Memory freed by `first` is returned: it
          would hide growth.
    """
    library = ctypes.CDLL(None)
    library.mallopt(-3, 2**16)  # M_MMAP_THRESHOLD: freed memory is returned
    first()
    gc.collect()
    library.malloc_trim(0)
    if keep_freed:
        keep_freed_memory()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset the peak
    before = _status("VmRSS")
    work()
    return max(0.0, _status("VmHWM") - before) / 1e6


def measure_growth_alone(module: str, options: Options, *names: str) -> float:
    """Run `--memory-of names` of a comparison in a separate process; NaN if it failed."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        module,
        "--data",
        str(options.data),
        "--threads",
    ]
    command += [str(options.threads), "--memory", options.memory, "--memory-of", *names]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    return float(result.stdout.split()[-1]) if result.returncode == 0 else float("nan")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def _busy() -> float:
    """Return the busy seconds of all cores since the machine started."""
    with open("/proc/stat", encoding="ascii") as file:
        values = [int(word) for word in file.readline().split()[1:9]]
    return (sum(values) - values[3] - values[4]) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    """Return the CPU seconds of this process and its finished children."""
    return sum(os.times()[:4])
