"""Notices on standard error, among them one when loops are compiled for the first time."""

import logging
import sys

from regard.system.terminal import escape_text
from regard.system.verbosity import verbosity

_LOG = logging.getLogger("regard.native.cache")


def print_notice(text: str) -> None:
    """Print a notice to standard error, unless the command is quiet."""
    if verbosity() != "quiet":
        print(escape_text(text), file=sys.stderr, flush=True)


def announce_compiling() -> None:
    """Print one notice when the first loop is compiled."""
    if not any(isinstance(handler, _CompilationNotice) for handler in _LOG.handlers):
        _LOG.setLevel(logging.INFO)
        _LOG.addHandler(_CompilationNotice())


class _CompilationNotice(logging.Handler):
    """Logging handler that prints a notice for the first record."""

    def emit(self, record: logging.LogRecord) -> None:
        self.setLevel(logging.CRITICAL)  # no further record
        remedy = getattr(record, "remedy", None)
        more = f" They cannot be cached: {remedy}." if remedy else ""
        print_notice(f"Compiling loops for this machine: this may take half a minute.{more}")
