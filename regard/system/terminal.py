"""Text for a terminal, and standard streams that are closed or a terminal. (no torch)"""

import contextlib
import io
import os
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, TextIO, cast

_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
_ALLOWED = "\n\t\u200c\u200d"
"""Besides white space, the two joiners, which scripts and emoji need."""
_MAX_WIDTH = 48
"""Length of a cell above which it does not widen its column."""


def escape_text(text: str) -> str:
    r"""Escape control and format characters, lone surrogates and line separators as \x1b ..., but
    not line feeds, tabs and the two joiners."""
    if text.isascii() and text.isprintable():
        return text
    escaped = []
    for character in text:
        is_hidden = character not in _ALLOWED and unicodedata.category(character) in _HIDDEN
        shown = character.encode("unicode_escape").decode("ascii") if is_hidden else character
        escaped.append(shown)
    return "".join(escaped)


def one_line(text: str, *, longest: int = 1000) -> str:
    """Return a message as one line, without the middle of a longer one."""
    line = escape_text(" ".join(text.split()))
    half = longest // 2 - 5
    return line if len(line) <= longest else f"{line[:half]} [...] {line[-half:]}"


def format_count(number: int, noun: str) -> str:
    """Return a number of things: "1 map", "3,000 maps"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as aligned columns; a very wide cell does not widen its column."""
    rows = [[cell.replace("\n", "\\n") for cell in row] for row in rows]
    widths = []
    for column in zip(*rows, strict=True):
        widths.append(max((len(cell) for cell in column if len(cell) <= _MAX_WIDTH), default=0))
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append(f"  {'  '.join(cells).rstrip()}")
    return "\n".join(lines)


class _EscapedStream:
    """Terminal to which text is written escaped; other attributes are those of the stream."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(escape_text(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def usable_streams() -> Iterator[None]:
    """Escape what is printed to a terminal, write UTF-8 to files and pipes, and discard what is
    printed to a closed stream."""
    with open(os.devnull, "w", encoding="utf-8") as null:
        output = sys.stdout or null
        if isinstance(output, io.TextIOWrapper):  # names of files that are not UTF-8
            output.reconfigure(errors="surrogateescape")
        for stream in (output, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
                stream.reconfigure(encoding="utf-8", errors=stream.errors)
        if output.isatty():
            # Data and predictions may hold control characters.
            output = cast("TextIO", _EscapedStream(output))
        with contextlib.redirect_stderr(sys.stderr or null), contextlib.redirect_stdout(output):
            yield
