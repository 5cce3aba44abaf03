"""Errors that a user can cause and mend; the command line prints them in one line, without a traceback."""


class UserError(ValueError):
    """The input, an option or a file is not usable; the message says what, where, what was expected and got."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: Python's and numpy's MemoryError, and what torch raises on any device."""
    texts = ("can't allocate memory", "out of memory", "Invalid buffer size", "bad_alloc")
    is_torch = isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
    return isinstance(error, MemoryError) or is_torch
