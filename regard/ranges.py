"""The values that a setting may have, stated where its field is declared: checked, and shown by --help. (no torch)

    layers: Annotated[int, Range(1, 1_000)] = 4

A range is finite at both ends, so that no setting alone asks for more than a machine can address; whether a model of
settings within their ranges fits into this machine's memory is seen when it is built (regard.models.size).
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
    """Whether `least` itself is not allowed."""
    is_open_above: bool = False
    """Whether `most` itself is not allowed."""

    def __contains__(self, value: float) -> bool:
        """Whether the number lies within; NaN lies in no range."""
        above = value > self.least if self.is_open_below else value >= self.least
        return above and (value < self.most if self.is_open_above else value <= self.most)

    def __str__(self) -> str:
        """As messages and the help say it: from 1 to 1,000; at least 0 and below 1."""
        least, most = _number(self.least), _number(self.most)
        if not (self.is_open_below or self.is_open_above):
            return f"from {least} to {most}"
        above, below = "above" if self.is_open_below else "at least", "below" if self.is_open_above else "at most"
        return f"{above} {least} and {below} {most}"


Layers = Annotated[int, Range(1, 1_000)]
Width = Annotated[int, Range(1, 65_536)]
"""Sizes of vectors."""
Heads = Annotated[int, Range(1, 4_096)]
Length = Annotated[int, Range(1, 1_000_000)]
"""Of sequences, in tokens."""
Batch = Annotated[int, Range(1, 65_536)]
Count = Annotated[int, Range(1, 1_000_000_000)]
Share = Annotated[float, Range(0, 1)]
ShareBelowOne = Annotated[float, Range(0, 1, is_open_above=True)]
ShareWithin = Annotated[float, Range(0, 1, is_open_below=True, is_open_above=True)]
Threads = Annotated[int, Range(1, 1_024)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
Draws = Annotated[int, Range(0, 10**12)]
"""Of which a million and three times as many are still a seed."""


def check_ranges(config: Any) -> None:
    """Check every field of a dataclass that states a range; None, and text where text may stand, have none.

    Raises: UserError with the field's name, its range and what it is.
    """
    for name, (within, is_whole) in _ranges(type(config)).items():
        value = getattr(config, name)
        for one in value if isinstance(value, tuple) else (value,):
            if one is None or isinstance(one, str):
                continue
            if isinstance(one, bool) or not isinstance(one, int if is_whole else int | float) or one not in within:
                kind = "a whole number " if is_whole and not isinstance(one, int) else ""
                raise UserError(f"{name} must be {kind}{within}, but is {shown(value)}")


def check_device(name: str) -> None:
    """Check that a device is called as one may be; whether it is there is seen when it is used.

    Raises: UserError with the names there are.
    """
    if not re.fullmatch(r"auto|cpu(:0)?|mps|(cuda|xpu)(:\d{1,3})?", name, re.ASCII):
        raise UserError(f"device must be auto, cpu, cuda, cuda:1, mps or xpu, but is {shown(name)}")


@functools.cache
def _ranges(cls: type) -> dict[str, tuple[Range, bool]]:
    """By field, its range and whether it is a whole number."""
    hints = get_type_hints(cls, include_extras=True)
    found = {name: _stated(annotation) for name, annotation in hints.items()}
    return {name: one for name, one in found.items() if one is not None}


def _stated(annotation: Any) -> tuple[Range, bool] | None:
    """What is stated in an annotation or a part of it: Annotated[int, Range(...)] | None, tuple[...]."""
    if get_origin(annotation) is Annotated:
        base, *facts = get_args(annotation)
        return next(((fact, base is int) for fact in facts if isinstance(fact, Range)), None)
    return next((found for part in get_args(annotation) if (found := _stated(part))), None)


def _number(value: float) -> str:
    return f"{int(value):,}" if isinstance(value, int) or value == int(value) < 1e15 else str(value)


def shown(value: object) -> str:
    """A value as a message quotes it."""
    try:
        text = repr(value)
    except ValueError:  # a whole number with more digits than Python writes
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
