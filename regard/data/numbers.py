"""Numbers that files hold: what Python takes for a number, as far as a person would, and within bounds."""

import math
from collections.abc import Iterable


def number(given: object, *, most: float) -> float | None:
    """The number that a text or a JSON value is; None if it is none, or its size is above `most`.

    True is no number, nor are nan, inf, 1_000 and 0x10.
    """
    if isinstance(given, bool) or not isinstance(given, int | float | str) or (isinstance(given, str) and "_" in given):
        return None
    try:
        found = float(given)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) and abs(found) <= most else None


def numbers(given: Iterable[object], *, most: float) -> list[float]:
    """As `number`, of several; an empty list if one of them is none."""
    found = [number(one, most=most) for one in given]
    return [] if None in found else [one for one in found if one is not None]


def plain(value: float) -> str:
    """A number as a person writes it: 3 of 3.0, and all digits of a large one."""
    return str(int(value)) if value.is_integer() and abs(value) <= 2**53 else f"{value:.12g}"
