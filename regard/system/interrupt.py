"""Handling of Ctrl-C, SIGTERM and SIGHUP (the terminal was closed). (no torch)

a command        KeyboardInterrupt
a training run   stops after a step and saves, so that it can be resumed

A signal that is ignored, as by nohup, stays ignored.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


class Interrupted(KeyboardInterrupt):
    """Raised by a signal within `Interruption.interruptible`."""


class Interruption:
    """Request to stop, set by a signal."""

    def __init__(self) -> None:
        self.is_requested = False
        self._is_interruptible = False

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise Interrupted in this context on a signal, also on an earlier one."""
        if self.is_requested:
            raise Interrupted
        self._is_interruptible = True
        try:
            yield
        finally:
            self._is_interruptible = False

    def receive(self, number: int, _frame: FrameType | None) -> None:
        # torchrun also forwards Ctrl-C as SIGTERM, so only a second Ctrl-C means to stop at once.
        if self.is_requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.is_requested:
            _write(b"\nStopping after this step, then saving. Ctrl-C again stops at once.\n")
        self.is_requested = True
        if self._is_interruptible:
            self._is_interruptible = False
            raise Interrupted


@contextmanager
def handle_signals() -> Iterator[Interruption]:
    """Turn signals in this context into a request to stop, in the main thread."""
    interruption = Interruption()
    with _handler(interruption.receive):
        yield interruption


def interrupted_by_signals() -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt on a signal in this context, in the main thread."""
    return _handler(signal.default_int_handler)


@contextmanager
def _handler(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in _NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)


def _write(message: bytes) -> None:
    """Write to standard error, without print, which a signal must not enter twice."""
    with suppress(OSError):  # the terminal may be closed
        os.write(2, message)
