"""Labels of tokens in figures, of any script, with visible spaces and control characters.

Characters without a glyph in any installed font are replaced by their code points, <4E2D>. SVG
figures keep the text, which is drawn with the fonts of the viewer.
"""

import functools
import itertools
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
from matplotlib import font_manager

MAX_LENGTH = 24
"""Largest number of characters of a label; longer labels end in an ellipsis."""

_FIRST = "DejaVu Sans"
"""Font that comes with matplotlib: Latin, Greek, Cyrillic, Arabic, Hebrew, ..."""
_SHOWN = {"\n": "\u21b5", "\t": "\u21e5", "\r": "\u240d"}
_JOINERS = "\u200c\u200d"
"""Invisible characters that are part of words in some scripts."""
_CIRCLE = "\u25cc"
_ELLIPSIS = "\u2026"
_ARROW, _ISOLATE, _POP = " -> ", "\u2068", "\u2069"


def readable(token: str, *, max_length: int = MAX_LENGTH, spaces: str = "\u2423") -> str:
    """Return the token with all characters visible: spaces as open boxes, a lone accent on a dotted
    circle; truncated.

    Control characters, halves of surrogate pairs and unassigned characters are replaced by their
    code points.
    """
    if not token:
        return "\u2205"
    if len(token) > max_length:
        token = token[: max_length - 1] + _ELLIPSIS
    joiners = _JOINERS if len(token) > 1 else ""
    shown = "".join(
        character if character in joiners else _visible(character, spaces) for character in token
    )
    return _CIRCLE + shown if unicodedata.combining(shown[0]) else shown


def escape_missing(text: str, families: Iterable[str]) -> str:
    """Replace characters that no font family has by their code points: <4E09 6708>, at most four of
    a run."""
    known = _characters_of(tuple(families))
    parts = []
    for is_known, run in itertools.groupby(text, key=lambda character: ord(character) in known):
        characters = list(run)
        parts.append("".join(characters) if is_known else _code_points(characters))
    return "".join(parts)


def isolate_sides(title: str) -> str:
    """Return a title "source -> output" with isolated sides (Unicode, UAX 9), if it is written from
    right to left.

    Otherwise the output is ordered with the source: 2019-03-02 after an Arabic date is shown as
    02-03-2019. Same as `readableTitle` in viewer/src/format.ts.
    """
    if _ARROW not in title or not any(
        unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in title
    ):
        return title
    return _ARROW.join(f"{_ISOLATE}{side}{_POP}" for side in title.split(_ARROW))


def families_for(texts: Iterable[str]) -> list[str]:
    """Return font families that together have the characters of the texts, in order of preference.

    Installed fonts are tried in the order of their names, until no character is missing.
    """
    families = [_FIRST]
    missing = {ord(character) for text in texts for character in text} - _characters(_FIRST)
    for family in _files() if missing else ():
        available = missing & _characters(family)
        if available:
            families.append(family)
            missing -= available
        if not missing:
            break
    return families


def width_em(text: str) -> float:
    """Return the approximate width of a text in units of the font size."""
    return sum(
        1.0 if unicodedata.east_asian_width(character) in "WF" else 0.62 for character in text
    )


def _visible(character: str, spaces: str) -> str:
    if character in _SHOWN:
        return _SHOWN[character]
    # Cc control, Cs half a surrogate pair, Co private use, Cn unassigned, Cf, Zl and Zp invisible.
    if unicodedata.category(character) in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"):
        return _code_points(character)
    return spaces if character.isspace() else character


def _code_points(characters: Sequence[str]) -> str:
    points = [f"{ord(character):04X}" for character in characters[:4]]
    more = _ELLIPSIS if len(characters) > 4 else ""
    return f"<{' '.join(points)}{more}>"


@functools.cache
def _characters_of(families: tuple[str, ...]) -> frozenset[int]:
    return frozenset().union(*(_characters(family) for family in families))


def _characters(family: str) -> frozenset[int]:
    """Return the code points that a font family has; empty if it is not installed."""
    path = _files().get(family)
    return frozenset() if path is None else _characters_in(path)


@functools.cache
def _characters_in(path: str) -> frozenset[int]:
    try:
        return frozenset(font_manager.get_font(path).get_charmap())
    except (OSError, RuntimeError):  # removed since it was listed, or in an unsupported format
        return frozenset()


@functools.cache
def _files() -> dict[str, str]:
    """Return the file of each upright font family: the default font, and the fonts of the system by
    name.

    The other fonts of matplotlib are for mathematics, or have a box for every character.
    """
    own = Path(matplotlib.get_data_path())
    files = {}
    for font in sorted(font_manager.fontManager.ttflist, key=lambda font: font.name):
        is_eager = font.style == "normal" and font.weight in (400, "normal", "regular")
        is_system = own not in Path(font.fname).parents and "Emoji" not in font.name
        if is_eager and (font.name == _FIRST or is_system):
            files.setdefault(font.name, font.fname)
    return files
