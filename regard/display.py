"""Text from elsewhere as a terminal may show it: control characters are written as escapes, never sent. (no torch)"""

import unicodedata
from typing import Any

_LONGEST = 1000
_KEPT = "\n\t"
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
_JOINERS = "\u200c\u200d"
"""Format characters that scripts and emoji need, and that move nothing on a screen."""


def escaped(text: str) -> str:
    r"""The text with control and format characters, lone surrogates and line separators as \x1b, \u202e, ...

    Line feeds, tabs and the two joiners stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def one_line(text: str, *, longest: int = _LONGEST) -> str:
    """A message in one line of at most `longest` characters; what is left out of a longer one stands in its middle."""
    line = escaped(" ".join(text.split()))
    if len(line) <= longest:
        return line
    half = longest // 2 - 20
    return f"{line[:half]} [... {len(line) - 2 * half:,} characters ...] {line[-half:]}"


class EscapedStream:
    """A terminal's stream, to which all text is written escaped; everything else is the stream's own."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        """Write it escaped."""
        self._stream.write(escaped(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _shown(character: str) -> str:
    if character in _KEPT or character in _JOINERS or unicodedata.category(character) not in _HIDDEN:
        return character
    return character.encode("unicode_escape").decode("ascii")
