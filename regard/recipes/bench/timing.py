"""How long calls take: as many of them as fit into a while, one after the other.

rate = sum of what the calls did / sum of their seconds        median, 10th to 90th percentile of one call
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class Times:
    """What was measured of some calls."""

    seconds: tuple[float, ...]
    """Of each call, in order."""
    calls: tuple[int, ...]
    """Which of the calls each was."""

    def rate(self, amounts: Sequence[float]) -> float:
        """So much a second, where call i does amounts[i]."""
        return sum(amounts[call] for call in self.calls) / sum(self.seconds)

    def told(self) -> dict[str, Any]:
        """Milliseconds, for reports."""
        return {
            "measured": len(self.seconds),
            "median_ms": 1e3 * percentile(self.seconds, 50),
            "low_ms": 1e3 * percentile(self.seconds, 10),
            "high_ms": 1e3 * percentile(self.seconds, 90),
            "p95_ms": 1e3 * percentile(self.seconds, 95),
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed. Raises ValueError if there is none."""
    if not values:
        raise ValueError("values must hold one at least, but are empty")
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def timed(
    calls: Sequence[Callable[[], object]],
    *,
    seconds: float,
    device: torch.device,
    least: int = 3,
    most: int = 100_000,
) -> Times:
    """Measure the calls, the first again after the last, until the time is over and `least` were made."""
    spent: list[float] = []
    which: list[int] = []
    waited(device)
    end = time.perf_counter() + seconds
    while len(spent) < most and (len(spent) < least or time.perf_counter() < end):
        call = len(spent) % len(calls)
        begun = time.perf_counter()
        calls[call]()
        waited(device)
        spent.append(time.perf_counter() - begun)
        which.append(call)
    return Times(seconds=tuple(spent), calls=tuple(which))


def waited(device: torch.device) -> None:
    """Wait until an accelerator has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
