"""Ctrl-C and SIGTERM ask a run to stop where it can go on later, instead of tearing it down."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Raised inside a stretch of code that may be cut off at once: see `Interruption.cutting`."""


class Interruption:
    """Whether a signal has asked the run to stop."""

    def __init__(self) -> None:
        self.is_asked = False
        self._may_cut = False

    @contextmanager
    def cutting(self) -> Iterator[None]:
        """Code that changes nothing and takes long: a signal raises Interrupted in it, also one that came
        before."""
        if self.is_asked:
            raise Interrupted
        self._may_cut = True
        try:
            yield
        finally:
            self._may_cut = False

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        # torchrun passes Ctrl-C on as SIGTERM too, so only a second Ctrl-C is impatience.
        if self.is_asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.is_asked:
            # Not print: a signal may come in the middle of one, and it cannot be entered twice.
            os.write(2, b"\nStopping after this step, then saving. Ctrl-C again stops at once.\n")
        self.is_asked = True
        if self._may_cut:
            self._may_cut = False
            raise Interrupted


@contextmanager
def caught() -> Iterator[Interruption]:
    """Receive SIGINT and SIGTERM here; outside the main thread, which alone can, nothing is received."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, interruption._receive) for number in numbers}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
