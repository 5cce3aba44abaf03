"""Labels that can be drawn and read: tokens of any script, spaces and control characters included.

Characters that no installed font has are spelled as code points, <4E2D>. An SVG picture needs none of that:
it keeps text as text, and whoever shows it draws it with their fonts.
"""

import functools
import itertools
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
from matplotlib import font_manager

MAX_LENGTH = 24
"""Characters of a label that are shown; a longer one ends in an ellipsis."""

_FIRST = "DejaVu Sans"
"""Comes with matplotlib, so that it is always there: Latin, Greek, Cyrillic, Arabic, Hebrew, ..."""
_SHOWN = {"\n": "\u21b5", "\t": "\u21e5", "\r": "\u240d"}
_JOINERS = "\u200c\u200d"
"""Invisible letters that belong to words of some scripts."""
_CIRCLE = "\u25cc"
_ELLIPSIS = "\u2026"


def readable(token: str, *, max_length: int = MAX_LENGTH, spaces: str = "\u2423") -> str:
    """The token with everything visible: spaces as open boxes, a lone accent on a dotted circle, cut if long.

    Control characters, halves of surrogate pairs and unassigned characters are spelled as code points.
    """
    if not token:
        return "\u2205"
    if len(token) > max_length:
        token = token[: max_length - 1] + _ELLIPSIS
    joiners = _JOINERS if len(token) > 1 else ""
    shown = "".join(character if character in joiners else _visible(character, spaces) for character in token)
    return _CIRCLE + shown if unicodedata.combining(shown[0]) else shown


def spelled(text: str, families: Iterable[str]) -> str:
    """The text, what none of the font families has as code points: <4E09 6708>, four in a row at most."""
    known = _characters_of(tuple(families))
    pieces = []
    for is_known, run in itertools.groupby(text, key=lambda character: ord(character) in known):
        characters = list(run)
        pieces.append("".join(characters) if is_known else _code_points(characters))
    return "".join(pieces)


def families_for(texts: Iterable[str]) -> list[str]:
    """Font families that draw the texts, in order of preference.

    Installed fonts are asked in the order of their names, and only while something is missing.
    """
    families = [_FIRST]
    missing = {ord(character) for text in texts for character in text} - _characters(_FIRST)
    for family in _files() if missing else ():
        found = missing & _characters(family)
        if found:
            families.append(family)
            missing -= found
        if not missing:
            break
    return families


def width_em(text: str) -> float:
    """Rough width of a text in font sizes: enough to leave room for it."""
    return sum(1.0 if unicodedata.east_asian_width(character) in "WF" else 0.62 for character in text)


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
    """The code points that a family draws; empty if it is not installed."""
    path = _files().get(family)
    return frozenset() if path is None else _characters_in(path)


@functools.cache
def _characters_in(path: str) -> frozenset[int]:
    try:
        return frozenset(font_manager.get_font(path).get_charmap())
    except (OSError, RuntimeError):  # gone since it was listed, or in a format that is not read
        return frozenset()


@functools.cache
def _files() -> dict[str, str]:
    """The file of each upright family: ours, and the system's by name.

    Matplotlib's own others hold mathematics, and boxes for every character.
    """
    own = Path(matplotlib.get_data_path())
    files = {}
    for font in sorted(font_manager.fontManager.ttflist, key=lambda font: font.name):
        is_plain = font.style == "normal" and font.weight in (400, "normal", "regular")
        is_system = own not in Path(font.fname).parents and "Emoji" not in font.name
        if is_plain and (font.name == _FIRST or is_system):
            files.setdefault(font.name, font.fname)
    return files
