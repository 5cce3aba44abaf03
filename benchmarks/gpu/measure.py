"""Times, memory and launches on a device, and the lines of a table."""

import importlib.metadata
import itertools
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

Run = Callable[[], object]
TURNS, TURN_S, WARM_UP = 3, 0.1, 3


class Setting(NamedTuple):
    """Command line of a part."""

    device: torch.device
    quick: bool
    """Tiny sizes and one round."""
    data: Path | None
    """Folder with multi30k/ in it."""

    def synchronize(self) -> None:
        """Wait until the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def head(setting: Setting) -> str:
    """Return the card, the versions and the date."""
    card = torch.cuda.get_device_name() if setting.device.type == "cuda" else "CPU"
    packages = importlib.metadata.packages_distributions()
    words = [card]
    for name in ("torch", "triton", "transformers", "x_transformers"):
        for package in packages.get(name, [])[:1]:
            words.append(f"{package} {importlib.metadata.version(package)}")
    words += [f"Python {platform.python_version()}", str(date.today())]
    return ", ".join(words) + (", QUICK: measures nothing" if setting.quick else "")


def medians(contestants: Mapping[str, Run], setting: Setting) -> dict[str, float]:
    """Return the median seconds of each contestant that does not fail, in turns."""
    times: dict[str, list[float]] = {}
    for name, run in contestants.items():
        if succeeds(name, run, setting):
            times[name] = []
    for _ in range(1 if setting.quick else TURNS):
        for name in times:
            times[name] += _turn(contestants[name], setting)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def succeeds(name: str, run: Run, setting: Setting, *, times: int = WARM_UP) -> bool:
    """Run a contestant a few times, which compiles and allocates; print its error if it fails."""
    try:
        for _ in range(1 if setting.quick else times):
            run()
        setting.synchronize()
    except Exception as error:  # noqa: BLE001  # a table without a contestant is still a table
        lines = str(error).strip().splitlines() or [""]
        print(f"    {name} failed: {type(error).__name__}: {lines[0][:200]}", flush=True)
        return False
    return True


def _turn(run: Run, setting: Setting) -> list[float]:
    """Return the seconds of each run of a turn, by CUDA events if the device has them."""
    setting.synchronize()
    start = time.perf_counter()
    run()
    setting.synchronize()
    seconds = time.perf_counter() - start
    if setting.device.type != "cuda":
        return [seconds]
    count = 1 if setting.quick else min(100, max(3, round(TURN_S / seconds)))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    setting.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events)]


def peak_memory(run: Run, setting: Setting) -> float:
    """Return by how many MB a run exceeds the memory allocated before; NaN without a GPU."""
    if setting.device.type != "cuda":
        run()
        return float("nan")
    setting.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    setting.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def count_launches(run: Run, setting: Setting) -> int:
    """Return the number of kernels, copies and fills that a run starts; 0 without a GPU."""
    if setting.device.type != "cuda":
        return 0
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        setting.synchronize()
    return sum(event.device_type == DeviceType.CUDA for event in profiler.events() or ())


def row(*cells: object) -> str:
    """Return a line of a table: two wide cells, then numbers; None is an empty cell."""
    words = ["" if cell is None else str(cell) for cell in cells]
    for number, cell in enumerate(cells):
        if isinstance(cell, float):
            words[number] = f"{cell:,.3f}"
    return f"{words[0]:<26}{words[1]:<18}" + "".join(f"{word:>12}" for word in words[2:])


def ratio(values: Mapping[str, float], name: str, other: str) -> float | None:
    """Return the quotient of two values, or None if one of them is missing."""
    return values[name] / values[other] if {name, other} <= set(values) else None


def verdict(name: str, value: float | None, word: str, target: float) -> str:
    """Return a figure beside its target, which is the least or the most (`word`)."""
    if value is None:
        return f"  -> {name}: not measured, target at {word} {target}"
    is_reached = value >= target if word == "least" else value <= target
    result = "reached" if is_reached else "MISSED"
    return f"  -> {name}: {value:.2f}, target at {word} {target}: {result}"
