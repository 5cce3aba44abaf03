"""Errors that a user can cause and mend; the command line prints them in one line, without a traceback."""

__all__ = ["UserError"]


class UserError(ValueError):
    """The input, an option or a file is not usable; the message says what, where, what was expected and got."""
