"""Verbosity of the command line: --quiet hides notices and progress, --verbose shows log records.
(no torch)"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

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


def take_verbosity(words: Sequence[str]) -> tuple[list[str], Verbosity]:
    """Return a command line without -q, --quiet, -v and --verbose (before --), and the last of
    them."""
    end = list(words).index("--") if "--" in words else len(words)
    found = [_OPTIONS[word] for word in words[:end] if word in _OPTIONS]
    return [*(word for word in words[:end] if word not in _OPTIONS), *words[end:]], found[
        -1
    ] if found else "normal"


@contextmanager
def set_verbosity(value: Verbosity) -> Iterator[None]:
    """Set the verbosity within the context; verbose prints the log records of this package to
    standard error."""
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
