"""Labels of tokens in figures, of any script, with visible spaces and control characters."""

import functools
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import matplotlib
from matplotlib import font_manager

_FIRST = "DejaVu Sans"
"""Font that comes with matplotlib: Latin, Greek, Cyrillic, Arabic, Hebrew, ..."""
_SHOWN = {"\n": "\u21b5", "\t": "\u21e5", "\r": "\u240d"}
_INVISIBLE = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
"""Categories: control, format, unassigned, private use, half a surrogate pair, separators."""
_ARROW, _ISOLATE, _POP = " -> ", "\u2068", "\u2069"


def readable(token: str, *, max_length: int = 24, spaces: str = "\u2423") -> str:
    """Return the token with all characters visible: spaces as open boxes, a lone accent on a dotted
    circle, control characters as their code points; truncated with an ellipsis."""
    if not token:
        return "\u2205"
    if len(token) > max_length:
        token = token[: max_length - 1] + "\u2026"
    shown = ""
    for character in token:
        if character in _SHOWN:
            shown += _SHOWN[character]
        elif character in "\u200c\u200d" and len(token) > 1:  # joiners of letters in words
            shown += character
        elif unicodedata.category(character) in _INVISIBLE:
            shown += f"<{ord(character):04X}>"
        else:
            shown += spaces if character.isspace() else character
    return f"\u25cc{shown}" if unicodedata.combining(shown[0]) else shown


def isolate_sides(title: str) -> str:
    """Return a title "source -> output" with isolated sides (UAX 9), if it is from right to left.

    Otherwise the output is ordered with the source: 2019-03-02 after an Arabic date is shown as
    02-03-2019. Same as `readableTitle` in viewer/src/format.ts.
    """
    if _ARROW not in title or not any(
        unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in title
    ):
        return title
    return _ARROW.join(f"{_ISOLATE}{side}{_POP}" for side in title.split(_ARROW))


def families_for(texts: Iterable[str]) -> list[str]:
    """Return font families that together have the characters of the texts, preferred ones first."""
    families = [_FIRST]
    missing = {ord(character) for text in texts for character in text}
    missing -= _characters_in(_files()[_FIRST])
    for family, path in _files().items() if missing else ():
        if available := missing & _characters_in(path):
            families.append(family)
            missing -= available
    return families


def width_em(text: str) -> float:
    """Return the approximate width of a text in units of the font size."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return wide + 0.62 * (len(text) - wide)


@functools.cache
def _characters_in(path: str) -> frozenset[int]:
    try:
        return frozenset(font_manager.get_font(path).get_charmap())
    except (OSError, RuntimeError):  # removed since it was listed, or in an unsupported format
        return frozenset()


@functools.cache
def _files() -> dict[str, str]:
    """Return the file of each upright font family: the default font, and those of the system.

    The other fonts of matplotlib are for mathematics, or have a box for every character.
    """
    own = Path(matplotlib.get_data_path())
    files = {}
    for font in sorted(font_manager.fontManager.ttflist, key=lambda font: font.name):
        is_upright = font.style == "normal" and font.weight in (400, "normal", "regular")
        is_system = own not in Path(font.fname).parents and "Emoji" not in font.name
        if is_upright and (font.name == _FIRST or is_system):
            files.setdefault(font.name, font.fname)
    return files
