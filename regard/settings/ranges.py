"""Value ranges of settings, declared in the annotation of a field. (no torch)

    layers: Annotated[int, Range(1, 1_000)] = 4

A range is finite at both ends, so that no single setting asks for more than a machine can address.
"""

import re
from dataclasses import dataclass
from typing import Annotated

from regard.errors import UserError


@dataclass(frozen=True)
class Range:
    """The numbers from `least` to `most`."""

    least: float
    most: float
    is_open_below: bool = False
    """True if `least` itself is not allowed."""
    is_open_above: bool = False
    """True if `most` itself is not allowed."""

    def __contains__(self, value: float) -> bool:
        above = value > self.least if self.is_open_below else value >= self.least
        return above and (value < self.most if self.is_open_above else value <= self.most)

    def __str__(self) -> str:
        """Return the range as messages show it: from 1 to 1,000; at least 0 and below 1."""
        least, most = _format_number(self.least), _format_number(self.most)
        if not (self.is_open_below or self.is_open_above):
            return f"from {least} to {most}"
        above = "above" if self.is_open_below else "at least"
        below = "below" if self.is_open_above else "at most"
        return f"{above} {least} and {below} {most}"


Layers = Annotated[int, Range(1, 1_000)]
Width = Annotated[int, Range(1, 65_536)]
"""Size of a vector."""
Heads = Annotated[int, Range(1, 4_096)]
Length = Annotated[int, Range(1, 1_000_000)]
"""Length of a sequence, in tokens."""
Batch = Annotated[int, Range(1, 65_536)]
Count = Annotated[int, Range(1, 1_000_000_000)]
Fraction = Annotated[float, Range(0, 1)]
FractionBelowOne = Annotated[float, Range(0, 1, is_open_above=True)]
FractionWithin = Annotated[float, Range(0, 1, is_open_below=True, is_open_above=True)]
Threads = Annotated[int, Range(1, 1_024)]
Seed = Annotated[int, Range(0, 2**32 - 1)]
"""Seed of random numbers; torch's generator of CPUs takes seeds modulo 2^32."""


def check_device(name: str) -> None:
    """Check that the name of a device is valid; its availability is checked when it is used."""
    if not re.fullmatch(r"auto|cpu(:0)?|mps|(cuda|xpu)(:\d{1,3})?", name, re.ASCII):
        raise UserError(
            f"device must be auto, cpu, cuda, cuda:1, mps or xpu, got {short_repr(name)}"
        )


def short_repr(value: object) -> str:
    """Return the repr of a value, shortened for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _format_number(value: float) -> str:
    return f"{int(value):,}" if isinstance(value, int) or value == int(value) < 1e15 else str(value)
