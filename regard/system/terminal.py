"""Text for a terminal, and standard streams that are closed, full, or a terminal. (no torch)

text              control characters escaped, long messages shortened, rows as tables
standard input    closed: `regard predict` reports it
standard output   closed: treated as a broken pipe, so the first output ends the command; terminal:
written escaped
standard error    closed or full: messages are dropped, and the command continues
"""

import contextlib
import errno
import io
import os
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, TextIO, cast

_LONGEST = 1000
_ALLOWED = "\n\t"
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
_JOINERS = "\u200c\u200d"
"""Format characters that scripts and emoji need, and that do not move the cursor."""
_WIDE = 48
"""Length of a cell above which it does not widen its column."""


def escape_text(text: str) -> str:
    r"""Escape control and format characters, lone surrogates and line separators as \x1b, \u202e,
    ...

    Line feeds, tabs and the two joiners are left as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape_character(character) for character in text)


def one_line(text: str, *, longest: int = _LONGEST) -> str:
    """Return a message as one line of at most `longest` characters, with the middle of a longer
    message left out."""
    line = escape_text(" ".join(text.split()))
    if len(line) <= longest:
        return line
    half = longest // 2 - 20
    return f"{line[:half]} [... {len(line) - 2 * half:,} characters ...] {line[-half:]}"


def format_count(number: int, noun: str) -> str:
    """Return a number of things: "1 map", "3,000 maps"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as aligned columns, two spaces apart; a very wide cell does not widen its
    column."""
    rows = [[cell.replace("\n", "\\n") for cell in row] for row in rows]  # one line per row
    columns = list(zip(*rows, strict=True))
    widths = [
        max((len(cell) for cell in column if len(cell) <= _WIDE), default=0) for column in columns
    ]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(f"  {line.rstrip()}" for line in lines)


class OutputStream:
    """Wrapper of standard output whose errors name it, and which escapes text for a terminal.

    Other attributes are those of the stream.
    """

    def __init__(self, stream: Any):
        self._stream, self._escape = stream, escape_text if stream.isatty() else str

    def write(self, text: str) -> int:
        """Write text."""
        with _name_standard_output():
            self._stream.write(self._escape(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with _name_standard_output():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class MessageStream:
    """Wrapper of a stream that drops messages that cannot be written; other attributes are those of
    the stream."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text if possible."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._stream = _LostStream()
        return len(text)

    def flush(self) -> None:
        """Do nothing, because each message is flushed when written."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _LostStream(io.StringIO):
    """Replacement of a closed standard error."""

    def write(self, text: str) -> int:
        return len(text)


class _ClosedStream(io.StringIO):
    """Replacement of a closed standard output."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def usable_streams() -> contextlib.ExitStack:
    """Replace standard output and standard error by streams that can be written, until the returned
    context ends."""
    if any(stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)):
        _occupy_descriptors()
    errors = MessageStream(sys.stderr or _LostStream())
    stack = contextlib.ExitStack()
    stack.enter_context(contextlib.redirect_stderr(cast("TextIO", errors)))
    # Data and predictions may hold control characters: escaped for a terminal, unchanged for a file
    # or a pipe.
    output = _ClosedStream() if sys.stdout is None else OutputStream(sys.stdout)
    stack.enter_context(contextlib.redirect_stdout(cast("TextIO", output)))
    return stack


@contextlib.contextmanager
def _name_standard_output() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.filename = "standard output"
        raise


def _escape_character(character: str) -> str:
    if (
        character in _ALLOWED
        or character in _JOINERS
        or unicodedata.category(character) not in _HIDDEN
    ):
        return character
    return character.encode("unicode_escape").decode("ascii")


def _occupy_descriptors() -> None:
    """Open the null device as each closed standard descriptor, so that no file of a run gets its
    number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
