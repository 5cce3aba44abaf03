"""Errors in what the user gave, and suggestions for their messages."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Error in an input, an option or a file; the message says what is wrong, where, and what was expected."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for a failed allocation: MemoryError of Python and NumPy, and torch's errors on any device."""
    texts = ("can't allocate memory", "out of memory", "Invalid buffer size", "bad_alloc")
    is_torch = isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
    return isinstance(error, MemoryError) or is_torch


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the known names most similar to `name`, or an empty text."""
    similar = difflib.get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(repr(suggestion) for suggestion in similar)}?" if similar else ""
