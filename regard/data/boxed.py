"""An image's boxes as a file tells them: names, labels and four numbers each, checked."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from regard.data.config import OnBad
from regard.data.numbers import numbers
from regard.errors import UserError

_MOST = 1e9
"""Pixels: sums of such are exact to a millionth."""
_SHOWN = 100


@dataclass(frozen=True)
class Boxed:
    """An image's name and the boxes in it."""

    file: str
    boxes: NDArray[np.float64]
    """(boxes, 4): x, y, width, height in pixels"""
    labels: tuple[str, ...]
    where: str
    """Where it is described, for messages."""
    size: tuple[int, int] | None = None
    """Width and height of the image, if the file tells them."""


@dataclass(frozen=True)
class LeftOut:
    """What is left out of a set of boxes, and why."""

    on_bad: OnBad
    """What is done with what cannot be used: error stops, skip leaves it out."""
    reasons: list[str] = field(default_factory=list)

    @contextmanager
    def checking(self) -> Generator[None, None, None]:
        """Leave out what this block reads if it raises UserError; with on_bad = error, raise that, with the remedy."""
        try:
            yield
        except UserError as error:
            if self.on_bad == "error":
                raise UserError(f"{error} With `on_bad` = skip, it is left out and counted.") from error
            self.reasons.append(str(error))


def boxed(
    file: str, boxes: Sequence[tuple[Sequence[float], str]], where: str, *, size: tuple[int, int] | None = None
) -> Boxed:
    """An image with its boxes and their labels."""
    array = np.array([box for box, _ in boxes], np.float64).reshape(-1, 4)
    return Boxed(file, array, tuple(label for _, label in boxes), where, size)


def four(given: object, where: str) -> list[float]:
    """x, y, width and height: a list of four numbers, or of texts that are numbers. Raises UserError."""
    found = numbers(given, most=_MOST) if isinstance(given, list) else []
    if len(found) != 4:
        shown = repr(given)[:_SHOWN]
        raise UserError(f"{where}: expected x, y, width, height, four numbers of at most {_MOST:g}, got {shown}.")
    return found


def label_of(given: object, where: str) -> str:
    """A label: a text, or a whole number as text. Raises UserError for anything else, and for none."""
    if isinstance(given, int) and not isinstance(given, bool):
        return str(given)
    return _text(given, where, "a label")


def name_of(given: object, where: str) -> str:
    """The name of an image file. Raises UserError for anything that is no text, and for none."""
    return _text(given, where, "the name of an image file")


def _text(given: object, where: str, what: str) -> str:
    if not isinstance(given, str) or not given.strip():
        raise UserError(f"{where}: expected {what}, got {repr(given)[:_SHOWN] if given not in (None, '') else 'none'}.")
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: expected {what}, got half a surrogate pair ({ascii(given)[:_SHOWN]}).") from error
    return given
