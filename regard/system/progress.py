"""Progress of long computations: reported by `track`, shown by `show_progress`. (no torch)"""

import contextvars
import importlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from regard.system.verbosity import verbosity

PartT = TypeVar("PartT")

_LOG = logging.getLogger(__name__)
_progress: contextvars.ContextVar[Any] = contextvars.ContextVar("progress", default=None)


def track(
    parts: Iterable[PartT], noun: str, total: int | None = None, *, size: Callable[[Any], int] = len
) -> Iterator[PartT]:
    """Yield parts of a computation, and report how many items are done within `show_progress`.

    noun:  of the items, in the plural.
    total: number of items of all parts; None if it is unknown.
    size:  number of items of a part.
    """
    progress = _progress.get()
    if progress is None:
        yield from parts
        return
    task, done, start = progress.add_task(noun, total=total, rate=""), 0, time.monotonic()
    try:
        for part in parts:
            yield part
            done += size(part)
            seconds = max(time.monotonic() - start, 1e-9)
            progress.update(task, completed=done, rate=f"{done / seconds:,.1f}/s")
    finally:
        progress.remove_task(task)


def format_time(seconds: float) -> str:
    """Return a duration as minutes and seconds, and hours if there are any: 1:05, 2:00:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextmanager
def show_progress(*, is_enabled: bool = True) -> Iterator[None]:
    """Show bars with rate and remaining time on standard error, if it is a terminal."""
    if not is_enabled or verbosity() == "quiet" or not sys.stderr.isatty():
        yield
        return
    rich = importlib.import_module("rich.progress")  # takes 0.1 s
    bar = rich.Progress(
        rich.BarColumn(bar_width=20),
        rich.MofNCompleteColumn(),
        rich.TextColumn("{task.description}"),
        rich.TextColumn("{task.fields[rate]}"),
        rich.TimeRemainingColumn(),
        console=importlib.import_module("rich.console").Console(stderr=True),
        transient=True,
        refresh_per_second=2,
        redirect_stdout=False,  # it may be a file
    )
    with bar as progress:
        token = _progress.set(progress)
        try:
            yield
        finally:
            _progress.reset(token)


@contextmanager
def report_slow(
    notify: Callable[[str], None], text: str, *, seconds: float = 2.0
) -> Iterator[None]:
    """Notify with a text if the context takes longer than some seconds; log its duration."""
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
