"""Errors in what the user gave, suggestions for their messages, and the exit codes of the command
line."""

import difflib
import sys
import warnings
from collections.abc import Iterable

DONE = 0
UNUSABLE = 2
"""Invalid option, input or file; one line on stderr says why."""
INTERRUPTED = 130
"""Stopped by Ctrl-C, SIGTERM or SIGHUP."""
BROKEN_PIPE = 141
"""The reader of the output has closed it."""


class UserError(ValueError):
    """Error in an input, an option or a file; the message says what is wrong, where, and what was
    expected."""


def warn_caller(text: str) -> None:
    """Warn at the line that called this package."""
    frame, level, last = sys._getframe(), 1, 1
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
            last = level
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=last + 1)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for a failed allocation: MemoryError of Python and NumPy, and torch's errors on
    any device."""
    texts = ("can't allocate memory", "out of memory", "Invalid buffer size", "bad_alloc")
    is_torch = isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
    return isinstance(error, MemoryError) or is_torch


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three known names that are similar to `name` in any case, the most similar
    first."""
    by_lower: dict[str, str] = {}
    for one in known:
        by_lower.setdefault(one.lower(), one)
    return [by_lower[lower] for lower in difflib.get_close_matches(name.lower(), by_lower, n=3)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the known names most similar to `name` in any case, or an
    empty text."""
    similar = similar_names(name, known)
    return f" Did you mean {' or '.join(map(repr, similar))}?" if similar else ""
