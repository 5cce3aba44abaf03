"""Notice that the first training step or prediction on a machine waits for compilation."""

import logging

from regard.cli.notices import print_notice

_LOG = logging.getLogger("regard.attention.kernels.compiled_cache")


def announce_compiling() -> None:
    """Print a notice on standard error when a loop is first compiled, once."""
    if not any(isinstance(handler, _CompilationNotice) for handler in _LOG.handlers):
        _LOG.setLevel(logging.INFO)
        _LOG.addHandler(_CompilationNotice())


class _CompilationNotice(logging.Handler):
    """Logging handler that prints a notice for the first record."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._is_printed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Print the notice."""
        if not self._is_printed:
            self._is_printed = True
            remedy = getattr(record, "remedy", None)
            more = f" They cannot be cached: {remedy}." if remedy else ""
            print_notice(f"Compiling loops for this machine: this may take half a minute.{more}")
