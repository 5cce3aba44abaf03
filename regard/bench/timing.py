"""Timing of repeated calls for a given duration.

rate = sum of the calls' amounts / sum of their seconds        median, 10th to 90th percentile of
one call
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class Times:
    """Durations of a sequence of calls."""

    seconds: tuple[float, ...]
    """Duration of each call, in order."""
    calls: tuple[int, ...]
    """Index of the function that each call ran."""

    def rate(self, amounts: Sequence[float]) -> float:
        """Return the rate per second if function i processes amounts[i]."""
        return sum(amounts[call] for call in self.calls) / sum(self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics in milliseconds, for reports."""
        return {
            "num_calls": len(self.seconds),
            "median_ms": 1e3 * percentile(self.seconds, 50),
            "p10_ms": 1e3 * percentile(self.seconds, 10),
            "p90_ms": 1e3 * percentile(self.seconds, 90),
            "p95_ms": 1e3 * percentile(self.seconds, 95),
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` percent do not exceed. Raises ValueError if there
    are no values."""
    if not values:
        raise ValueError("values must not be empty")
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def time_calls(
    calls: Sequence[Callable[[], object]],
    *,
    seconds: float,
    device: torch.device,
    least: int = 3,
    most: int = 100_000,
) -> Times:
    """Time the calls in turn, repeatedly, until the time is over and at least `least` calls were
    made."""
    durations: list[float] = []
    indices: list[int] = []
    synchronize(device)
    end = time.perf_counter() + seconds
    while len(durations) < most and (len(durations) < least or time.perf_counter() < end):
        call = len(durations) % len(calls)
        start = time.perf_counter()
        calls[call]()
        synchronize(device)
        durations.append(time.perf_counter() - start)
        indices.append(call)
    return Times(seconds=tuple(durations), calls=tuple(indices))


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator has finished all queued work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
