"""Progress of long computations: `track` reports it, and `show_progress` displays it on a terminal. (no torch)"""

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
            bar.update(task, completed=done, rate=f"{done / max(time.monotonic() - start, 1e-9):,.1f}/s")
    finally:
        bar.remove_task(task)


@contextmanager
def show_progress(*, is_enabled: bool = True) -> Iterator[None]:
    """Show bars with rate and remaining time on standard error while `track` reports, if that is a terminal."""
    if not (is_enabled and verbosity() != "quiet" and sys.stderr is not None and sys.stderr.isatty()):
        yield
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
    with rich.Progress(*columns, console=console, transient=True, refresh_per_second=2, redirect_stdout=False) as bar:
        token = _bar.set(bar)
        try:
            yield
        finally:
            _bar.reset(token)


@contextmanager
def report_slow(notify: Callable[[str], None], text: str, *, seconds: float = 2.0) -> Iterator[None]:
    """Notify with a text if the context takes longer than some seconds; its duration is logged (--verbose)."""
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
