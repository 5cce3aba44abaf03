"""Standard streams that are closed, full, or a terminal.

standard input    closed: `regard predict` reports it
standard output   closed: treated as a broken pipe, so the first output ends the command; terminal: written escaped
standard error    closed or full: messages are dropped, and the command continues
"""

import contextlib
import errno
import io
import os
import sys
from typing import Any, TextIO, cast

from regard.system.terminal import EscapedStream


class MessageStream:
    """Wrapper of a stream that drops messages that cannot be written; other attributes are those of the stream."""

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
    """Replace standard output and standard error by streams that can be written, until the returned context ends."""
    if any(stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)):
        _occupy_descriptors()
    errors = MessageStream(sys.stderr or _LostStream())
    stack = contextlib.ExitStack()
    stack.enter_context(contextlib.redirect_stderr(cast("TextIO", errors)))
    # Data and predictions may hold control characters: escaped for a terminal, unchanged for a file or a pipe.
    if sys.stdout is None:
        stack.enter_context(contextlib.redirect_stdout(_ClosedStream()))
    elif sys.stdout.isatty():
        stack.enter_context(contextlib.redirect_stdout(cast("TextIO", EscapedStream(sys.stdout))))
    return stack


def _occupy_descriptors() -> None:
    """Open the null device as each closed standard descriptor, so that no file of a run gets its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor
