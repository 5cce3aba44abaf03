"""Progress of long computations: `track` reports it, and `show_progress` displays it as bars or
lines. (no torch)"""

import contextvars
import importlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from regard.system.verbosity import verbosity

PartT = TypeVar("PartT")

_LOG = logging.getLogger(__name__)

_EVERY = 10.0
"""Seconds between lines of progress where there is no terminal."""

_SHORTEST = 1.0
"""Seconds after which a line has the rate and the remaining time."""

_bar: ContextVar[Any] = ContextVar("bar", default=None)


def track(
    parts: Iterable[PartT], noun: str, total: int | None = None, *, size: Callable[[Any], int] = len
) -> Iterator[PartT]:
    """Yield parts of a computation, and report how many items are done within `show_progress`.

    noun:  of the items, in the plural.
    total: number of items of all parts; None if it is unknown.
    size:  number of items of a part.
    """
    bar = _bar.get()
    if bar is None:
        yield from parts
        return
    task, done, start = bar.add_task(noun, total=total, rate=""), 0, time.monotonic()
    try:
        for part in parts:
            yield part
            done += size(part)
            bar.update(
                task, completed=done, rate=f"{done / max(time.monotonic() - start, 1e-9):,.1f}/s"
            )
    finally:
        bar.remove_task(task)


def format_time(seconds: float) -> str:
    """Return a duration as minutes and seconds, and hours if there are any: 1:05, 2:00:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class _Lines:
    """Progress as lines on standard error, one each _EVERY seconds, with the interface of rich's
    Progress.

    A line has all computations that run, the outermost first.
    """

    def __init__(self) -> None:
        self._tasks: dict[int, tuple[str, int | None, float]] = {}
        self._texts: dict[int, str] = {}
        self._last = time.monotonic()

    def add_task(self, noun: str, *, total: int | None, rate: str) -> int:
        number = max(self._tasks, default=0) + 1
        self._tasks[number] = noun, total, time.monotonic()
        self._texts[number] = self._format(number, 0, rate)
        return number

    def update(self, task: int, *, completed: int, rate: str) -> None:
        self._texts[task] = self._format(task, completed, rate)
        if (now := time.monotonic()) - self._last >= _EVERY:
            self._last = now
            print(
                "; ".join(self._texts[number] for number in sorted(self._texts)),
                file=sys.stderr,
                flush=True,
            )

    def _format(self, task: int, completed: int, rate: str) -> str:
        noun, total, start = self._tasks[task]
        seconds = time.monotonic() - start
        text = f"{completed:,}{'' if total is None else f' of {total:,}'} {noun}"
        if not completed or seconds < _SHORTEST:
            return text
        left = None if total is None else seconds * max(0, total - completed) / completed
        return f"{text}  {rate}" + ("" if left is None else f"  {format_time(left)} left")

    def remove_task(self, task: int) -> None:
        del self._tasks[task]
        self._texts.pop(task, None)


@contextmanager
def show_progress(*, is_enabled: bool = True) -> Iterator[None]:
    """Show bars with rate and remaining time on standard error while `track` reports; lines, if it
    is no terminal."""
    if not is_enabled or verbosity() == "quiet" or sys.stderr is None:
        yield
        return
    if not sys.stderr.isatty():
        token = _bar.set(_Lines())
        try:
            yield
        finally:
            _bar.reset(token)
        return
    rich = importlib.import_module("rich.progress")  # takes 0.1 s
    columns = (
        rich.BarColumn(bar_width=20),
        rich.MofNCompleteColumn(),
        rich.TextColumn("{task.description}"),
        rich.TextColumn("{task.fields[rate]}"),
        rich.TimeRemainingColumn(),
    )
    console = importlib.import_module("rich.console").Console(stderr=True)
    # Standard output may be a file; rich would redirect it to the console.
    with rich.Progress(
        *columns, console=console, transient=True, refresh_per_second=2, redirect_stdout=False
    ) as bar:
        token = _bar.set(bar)
        try:
            yield
        finally:
            _bar.reset(token)


@contextmanager
def report_slow(
    notify: Callable[[str], None], text: str, *, seconds: float = 2.0
) -> Iterator[None]:
    """Notify with a text if the context takes longer than some seconds; its duration is logged
    (--verbose)."""
    # A thread has a context of its own, where the verbosity is not set.
    timer = threading.Timer(seconds, contextvars.copy_context().run, [notify, text])
    timer.daemon = True
    timer.start()
    start = time.monotonic()
    try:
        yield
    finally:
        timer.cancel()
        _LOG.debug("%s: %.2f s", text, time.monotonic() - start)
