"""Handling of Ctrl-C and SIGTERM: the run stops after a step and saves, so that it can be resumed."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Raised by a signal in code that may be interrupted at once; see `Interruption.interruptible`."""


class Interruption:
    """Request to stop, set by a signal."""

    def __init__(self) -> None:
        self.is_requested = False
        self._is_interruptible = False

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise Interrupted within this context on a signal, also on an earlier one; for slow code without effects."""
        if self.is_requested:
            raise Interrupted
        self._is_interruptible = True
        try:
            yield
        finally:
            self._is_interruptible = False

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        # torchrun also forwards Ctrl-C as SIGTERM, so only a second Ctrl-C means to stop at once.
        if self.is_requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.is_requested:
            # Not print, which is not reentrant: the signal may arrive during another print.
            os.write(2, b"\nStopping after this step, then saving. Press Ctrl-C again to stop at once.\n")
        self.is_requested = True
        if self._is_interruptible:
            self._is_interruptible = False
            raise Interrupted


@contextmanager
def handle_signals() -> Iterator[Interruption]:
    """Turn SIGINT and SIGTERM within this context into a request to stop; no effect outside the main thread."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, interruption._receive) for number in numbers}
    try:
        yield interruption
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
