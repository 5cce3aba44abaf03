"""Value ranges of settings, declared in the annotation of a field, checked, and printed by --help. (no torch)

    layers: Annotated[int, Range(1, 1_000)] = 4

A range is finite at both ends, so that no single setting asks for more than a machine can address. Whether a model fits
into the memory of this machine is checked when it is built (regard.system.model_size).
"""

import functools
import re
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from regard.errors import UserError


@dataclass(frozen=True)
class Range:
    """The numbers from `least` to `most`."""

    least: float
    most: float
    is_open_below: bool = False
    """If True, `least` itself is not allowed."""
    is_open_above: bool = False
    """If True, `most` itself is not allowed."""

    def __contains__(self, value: float) -> bool:
        """Return True if the number is in the range; NaN is in no range."""
        above = value > self.least if self.is_open_below else value >= self.least
        return above and (value < self.most if self.is_open_above else value <= self.most)

    def __str__(self) -> str:
        """Return the range as printed in messages and help: from 1 to 1,000; at least 0 and below 1."""
        least, most = _format_number(self.least), _format_number(self.most)
        if not (self.is_open_below or self.is_open_above):
            return f"from {least} to {most}"
        above, below = "above" if self.is_open_below else "at least", "below" if self.is_open_above else "at most"
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
Seed = Annotated[int, Range(0, 2**63 - 1)]
SamplingSeed = Annotated[int, Range(0, 10**12)]
"""Seed of sampling, such that three times as many and a million more are still a valid seed."""


def check_ranges(config: Any) -> None:
    """Check every field of a dataclass that declares a range; None and text are not checked.

    Raises: UserError with the name of the field, its range and the value.
    """
    for name, (within, is_whole) in _ranges(type(config)).items():
        value = getattr(config, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is None or isinstance(number, str):
                continue
            has_type = isinstance(number, int if is_whole else int | float) and not isinstance(number, bool)
            if not has_type or number not in within:
                kind = "a whole number " if is_whole and not isinstance(number, int) else ""
                raise UserError(f"{name} must be {kind}{within}, got {short_repr(value)}")


def check_device(name: str) -> None:
    """Check that the name of a device is valid; its availability is checked when it is used.

    Raises: UserError with the valid names.
    """
    if not re.fullmatch(r"auto|cpu(:0)?|mps|(cuda|xpu)(:\d{1,3})?", name, re.ASCII):
        raise UserError(f"device must be auto, cpu, cuda, cuda:1, mps or xpu, got {short_repr(name)}")


def short_repr(value: object) -> str:
    """Return the repr of a value, shortened for a message."""
    try:
        text = repr(value)
    except ValueError:  # a whole number with more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


@functools.cache
def _ranges(cls: type) -> dict[str, tuple[Range, bool]]:
    """Return the range of each field that declares one, and whether it holds whole numbers."""
    hints = get_type_hints(cls, include_extras=True)
    ranges = {name: _find_range(annotation) for name, annotation in hints.items()}
    return {name: entry for name, entry in ranges.items() if entry is not None}


def _find_range(annotation: Any) -> tuple[Range, bool] | None:
    """Return the range declared in an annotation or a part of it: Annotated[int, Range(...)] | None, tuple[...]."""
    if get_origin(annotation) is Annotated:
        base, *metadata = get_args(annotation)
        return next(((item, base is int) for item in metadata if isinstance(item, Range)), None)
    return next((entry for part in get_args(annotation) if (entry := _find_range(part))), None)


def _format_number(value: float) -> str:
    return f"{int(value):,}" if isinstance(value, int) or value == int(value) < 1e15 else str(value)
