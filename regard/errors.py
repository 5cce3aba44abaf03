"""Errors in what the user gave, and the exit codes of the command line."""

import sys
import warnings

DONE = 0
UNUSABLE = 2
"""Invalid option, input or file; one line on stderr says why."""
INTERRUPTED = 130
"""Stopped by Ctrl-C, SIGTERM or SIGHUP."""
BROKEN_PIPE = 141
"""The reader of the output has closed it."""


class UserError(ValueError):
    """Error in an input, option or file; the message says what is wrong and where."""


def warn_caller(text: str) -> None:
    """Warn at the line that called this package."""
    frame, level, last = sys._getframe(), 1, 1
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
            last = level
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=last + 1)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for a failed allocation: MemoryError, and torch's errors on any device."""
    texts = "can't allocate memory", "out of memory", "Invalid buffer size", "bad_alloc"
    texts += ("STATUS_ALLOC_FAILED",)  # of cuBLAS and cuDNN
    is_torch = isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
    return isinstance(error, MemoryError) or is_torch
