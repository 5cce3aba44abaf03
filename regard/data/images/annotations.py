"""Annotations of one image: its file name, and its labeled boxes or captions, checked while they
are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from regard.data.annotated import Annotated
from regard.data.text.numbers import parse_numbers
from regard.errors import UserError

MOST_PIXELS = 1e9
"""Pixels; sums of such coordinates are exact to a millionth."""
_SHOWN = 100
_MOST_CHARACTERS = 100_000


@dataclass(frozen=True)
class AnnotatedImage(Annotated):
    """File name of an image, with its boxes, their labels, and the size that the file states."""

    size: tuple[int, int] | None = None
    """Width and height of the image, if the file states them."""


class Caption(NamedTuple):
    """Sentence about an image."""

    text: str
    where: str
    """Location of the sentence (file and line), for messages."""


class CaptionedFile(NamedTuple):
    """File name of an image, with at least one caption."""

    file: str
    captions: tuple[Caption, ...]
    where: str
    """Location of its first mention, for messages."""


def annotate_image(
    file: str,
    boxes: Sequence[tuple[Sequence[float], str]],
    where: str,
    *,
    size: tuple[int, int] | None = None,
) -> AnnotatedImage:
    """Build the annotation of an image from its boxes and their labels."""
    array = np.array([box for box, _ in boxes], np.float64).reshape(-1, 4)
    return AnnotatedImage(file, array, tuple(label for _, label in boxes), where, size)


def parse_box(value: object, where: str) -> list[float]:
    """Return x, y, width and height from a list of four numbers or numeric strings. Raises
    UserError otherwise."""
    box = parse_numbers(value, most=MOST_PIXELS) if isinstance(value, list) else []
    if len(box) != 4:
        shown = repr(value)[:_SHOWN]
        raise UserError(
            f"{where}: expected x, y, width, height, four numbers of at most {MOST_PIXELS:g}, got "
            f"{shown}."
        )
    return box


def parse_label(value: object, where: str) -> str:
    """Return a label, a string or an integer, as a string. Raises UserError for other types and
    empty strings."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _parse_string(value, where, "a label")


def parse_caption(value: object, where: str) -> Caption:
    """Return a caption, with single spaces. Raises UserError for anything but a text, and for too
    long ones."""
    text = " ".join(_parse_string(value, where, "a caption").split())
    if len(text) > _MOST_CHARACTERS:
        raise UserError(
            f"{where}: a caption must have at most {_MOST_CHARACTERS:,} characters, got "
            f"{len(text):,}."
        )
    return Caption(text, where)


def parse_file_name(value: object, where: str) -> str:
    """Return the name of an image file. Raises UserError for other types and empty strings."""
    return _parse_string(value, where, "the name of an image file")


def _parse_string(value: object, where: str, expected: str) -> str:
    if not isinstance(value, str) or not value.strip():
        shown = repr(value)[:_SHOWN] if value not in (None, "") else "none"
        raise UserError(f"{where}: expected {expected}, got {shown}.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: expected {expected}, got a lone surrogate ({ascii(value)[:_SHOWN]})."
        ) from error
    return value
