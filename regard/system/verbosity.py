"""Verbosity of the command line: --quiet hides notices, --verbose shows log records. (no torch)"""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from regard.system.terminal import escape_text

Verbosity = Literal["quiet", "normal", "verbose"]

_verbosity: ContextVar[Verbosity] = ContextVar("verbosity", default="normal")
_OPTIONS: dict[str, Verbosity] = {
    "-q": "quiet",
    "--quiet": "quiet",
    "-v": "verbose",
    "--verbose": "verbose",
}


def verbosity() -> Verbosity:
    """Return the verbosity of the command that runs; that of Python is normal."""
    return _verbosity.get()


def print_notice(text: str) -> None:
    """Print a notice to standard error, unless the command is quiet."""
    if verbosity() != "quiet":
        print(escape_text(text), file=sys.stderr, flush=True)


def take_verbosity(words: Sequence[str]) -> tuple[list[str], Verbosity]:
    """Return a command line without the options of verbosity (before --), and their meaning."""
    level, rest = "normal", list(words)
    end = rest.index("--") if "--" in rest else len(rest)
    for word in rest[:end]:
        level = _OPTIONS.get(word, level)
    return [word for word in rest[:end] if word not in _OPTIONS] + rest[end:], level


@contextmanager
def set_verbosity(value: Verbosity) -> Iterator[None]:
    """Set the verbosity within the context; verbose prints this package's log records to stderr."""
    token, log = _verbosity.set(value), logging.getLogger("regard")
    level, handler = log.level, logging.StreamHandler()
    if value == "verbose":
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
        log.addHandler(handler)
        log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        _verbosity.reset(token)
        log.removeHandler(handler)
        log.setLevel(level)
