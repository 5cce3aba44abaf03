"""Trace events of a running model: the input of each row, the steps of a search, and its outputs. (no torch)

    with span(lambda: [sample, ...]) as samples:      # [] without subscribers: the function is not called
        model(...)                                    # row i of every call in this context belongs to samples[i]
    emit(lambda: SearchStep(source_rows))             # the calls from here on are one step of a search

There are normally no subscribers. Emitting then only reads one context variable, and the event is never built. Events
do not affect the code that emits them. `regard.record` subscribes to them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar


@dataclass(frozen=True)
class SampleBatch:
    """Row i of each following call belongs to samples[i]; None ends the batch: rows belong to no sample."""

    samples: Sequence[Any] | None


@dataclass(frozen=True)
class RowOrder:
    """Row i of each following call belongs to sample rows[i] of the current batch."""

    rows: Sequence[int]


@dataclass(frozen=True)
class SearchStep:
    """The following calls are one step of a search; row i of them belongs to row source_rows[i] of its source."""

    source_rows: Sequence[int]


@dataclass(frozen=True)
class StepScores:
    """The most probable next tokens of a step, in descending order, one list per row."""

    tokens: Sequence[Sequence[int]]
    log_probs: Sequence[Sequence[float]]


@dataclass(frozen=True)
class BeamStep:
    """The hypotheses kept after a step: the row that each extends, its new token and its total log-probability."""

    rows: Sequence[int]
    tokens: Sequence[int]
    log_probs: Sequence[float]


@dataclass(frozen=True)
class SearchOutput:
    """One output sequence: the token of each step, EOS included, and the row that produced it."""

    tokens: Sequence[int]
    rows: Sequence[int]
    log_probs: Sequence[float] = ()
    """Of each token, given those before it; optional if every token is among the `StepScores` of its step."""
    begin: int | None = None
    """First token of the decoder input, if it is not BOS."""


@dataclass(frozen=True)
class SearchEnd:
    """The outputs of a search for each row of its source, best first."""

    outputs: Sequence[Sequence[SearchOutput]]


TraceEvent = SampleBatch | RowOrder | SearchStep | StepScores | BeamStep | SearchEnd
SampleT = TypeVar("SampleT")

_subscribers: ContextVar[tuple[Callable[[TraceEvent], None], ...]] = ContextVar("subscribers", default=())


def is_traced() -> bool:
    """Return True if there is a subscriber in this context."""
    return bool(_subscribers.get())


def emit(make_event: Callable[[], TraceEvent]) -> None:
    """Send an event to all subscribers. Without subscribers, `make_event` is not called."""
    if subscribers := _subscribers.get():
        event = make_event()
        for subscriber in subscribers:
            subscriber(event)


@contextmanager
def span(make_samples: Callable[[], list[SampleT]]) -> Iterator[list[SampleT]]:
    """Assign the rows of all calls in this context to samples, and yield these, so that outputs can be added later.

    Without subscribers, `make_samples` is not called and the list is empty.
    """
    if not _subscribers.get():
        yield []
        return
    samples = make_samples()
    emit(lambda: SampleBatch(samples))
    try:
        yield samples
    finally:
        emit(lambda: SampleBatch(None))


@contextmanager
def subscribe(subscriber: Callable[[TraceEvent], None]) -> Iterator[None]:
    """Call `subscriber` with every event that is emitted in this context, in this thread."""
    token = _subscribers.set((*_subscribers.get(), subscriber))
    try:
        yield
    finally:
        _subscribers.reset(token)
