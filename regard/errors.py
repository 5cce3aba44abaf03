"""Errors caused by the user's input; the command line prints them in one line, without a traceback."""


class UserError(ValueError):
    """Error in an input, an option or a file; the message says what is wrong, where, and what was expected."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for a failed allocation: MemoryError of Python and NumPy, and torch's errors on any device."""
    texts = ("can't allocate memory", "out of memory", "Invalid buffer size", "bad_alloc")
    is_torch = isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
    return isinstance(error, MemoryError) or is_torch
