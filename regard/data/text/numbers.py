"""Parsing of numbers in files, and formatting of numbers for users."""

import math
from collections.abc import Iterable


def parse_number(value: object, *, most: float) -> float | None:
    """Parse a number from a string or a JSON value. Returns None if it is not a number of magnitude
    at most `most`.

    True, nan, inf, 1_000 and 0x10 are not numbers.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float | str)
        or (isinstance(value, str) and "_" in value)
    ):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and abs(number) <= most else None


def parse_numbers(values: Iterable[object], *, most: float) -> list[float]:
    """Parse several numbers as `parse_number`. Returns an empty list if one of them is not a
    number."""
    numbers = [parse_number(value, most=most) for value in values]
    return [] if None in numbers else [number for number in numbers if number is not None]


def format_number(value: float) -> str:
    """Format a number for users: 3 instead of 3.0, and all digits of a large integer."""
    return str(int(value)) if value.is_integer() and abs(value) <= 2**53 else f"{value:.12g}"
