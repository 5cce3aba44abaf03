"""Says why the first training step or the first answer on a machine is waited for: loops are compiled."""

import logging

from regard.cli.notices import tell

_LOG = logging.getLogger("regard.attention.kernels.compiled_cache")


def tell_of_compiling() -> None:
    """From here on, say it on standard error when a loop is first compiled; it is said once."""
    if not any(isinstance(handler, _Teller) for handler in _LOG.handlers):
        _LOG.setLevel(logging.INFO)
        _LOG.addHandler(_Teller())


class _Teller(logging.Handler):
    """Says the first of what is logged, in words for somebody who waits."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._is_told = False

    def emit(self, record: logging.LogRecord) -> None:
        """Say it."""
        if not self._is_told:
            self._is_told = True
            remedy = getattr(record, "remedy", None)
            more = f" They cannot be kept for later: {remedy}." if remedy else ""
            tell(f"Compiling loops for this machine: this may take half a minute.{more}")
