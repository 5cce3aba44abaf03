"""Numbers that files hold: what Python takes for a number, as far as a person would, and within bounds."""

import math

__all__ = ["number"]


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
