"""Standard streams as a command needs them, also where they are closed, full, or a terminal.

standard input    closed: `regard predict` says so
standard output   closed: as a pipe that nobody reads, the first answer ends the command; terminal: written escaped
standard error    closed or full: messages are lost, and the command goes on
"""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from regard.display import EscapedStream


class MessageStream:
    """A stream whose messages are lost where it cannot take them; everything else is the stream's own."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        """Write it if that is possible."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._stream = _LostStream()
        return len(text)

    def flush(self) -> None:
        """Do nothing: each message has been flushed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _LostStream(io.StringIO):
    """Standard error that nobody reads."""

    def write(self, text: str) -> int:
        return len(text)


class _ClosedStream(io.StringIO):
    """Standard output that nobody can read."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


@contextlib.contextmanager
def usable_streams() -> Iterator[None]:
    """Replace standard output and standard error by streams that can be written, for as long as this lasts."""
    if any(stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)):
        _occupy_descriptors()
    errors = MessageStream(sys.stderr or _LostStream())
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stderr(cast("TextIO", errors)))
        # Data and answers may hold control characters: a terminal gets them escaped, a file or a pipe as they are.
        if sys.stdout is None:
            stack.enter_context(contextlib.redirect_stdout(_ClosedStream()))
        elif sys.stdout.isatty():
            stack.enter_context(contextlib.redirect_stdout(cast("TextIO", EscapedStream(sys.stdout))))
        yield


def _occupy_descriptors() -> None:
    """Open the null device as each standard descriptor that is closed, so that no file of a run becomes one of them."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free
