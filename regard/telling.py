"""What a running model tells whoever looks on: which input a row is, where a step begins, what was said. (no torch)

    with showing(lambda: [scene, ...]) as scenes:     # [] if nobody looks on: then nothing is made
        model(...)                                    # row i of every call in here belongs to scenes[i]
    tell(lambda: Step(sentences))                     # the calls from here on are one step of a search

Nobody looks on, as a rule: telling then costs a look at a variable, and what would be told is never made. Telling
changes nothing for the one who tells. `regard.record` is who looks on.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar


@dataclass(frozen=True)
class Shown:
    """Row i of each call from here on belongs to scenes[i]; None: to nothing that is shown."""

    scenes: Sequence[Any] | None


@dataclass(frozen=True)
class Rows:
    """Row i of each call from here on belongs to scene rows[i] of those that are shown."""

    rows: Sequence[int]


@dataclass(frozen=True)
class Step:
    """The calls from here on are one step of a search; row i of theirs belongs to row sentences[i] of its source."""

    sentences: Sequence[int]


@dataclass(frozen=True)
class Scored:
    """The likeliest tokens of a step, largest first; one list a row."""

    tokens: Sequence[Sequence[int]]
    log_probs: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Lived:
    """The hypotheses that go on after a step: the row that each continues, by which token, log p of the whole."""

    rows: Sequence[int]
    tokens: Sequence[int]
    log_probs: Sequence[float]


@dataclass(frozen=True)
class Answer:
    """Something that was said: the token of each step, its end included, and the row that said it."""

    tokens: Sequence[int]
    rows: Sequence[int]
    log_probs: Sequence[float] = ()
    """Of each token, given those before it; may be left out where each was among the likeliest of its step."""
    begin: int | None = None
    """The token that was fed first, where that is no begin symbol."""


@dataclass(frozen=True)
class Answered:
    """What a search found for each row of its source, best first."""

    answers: Sequence[Sequence[Answer]]


Told = Shown | Rows | Step | Scored | Lived | Answered
SceneT = TypeVar("SceneT")

_hearers: ContextVar[tuple[Callable[[Told], None], ...]] = ContextVar("hearers", default=())


def is_heard() -> bool:
    """Whether anybody looks on."""
    return bool(_hearers.get())


def tell(make: Callable[[], Told]) -> None:
    """Tell it to all who look on; if nobody does, it is not made."""
    if hearers := _hearers.get():
        told = make()
        for hear in hearers:
            hear(told)


@contextmanager
def showing(make: Callable[[], list[SceneT]]) -> Iterator[list[SceneT]]:
    """Say what the rows of the calls within are; the scenes are given back, to be completed by what is answered."""
    if not _hearers.get():
        yield []
        return
    scenes = make()
    tell(lambda: Shown(scenes))
    try:
        yield scenes
    finally:
        tell(lambda: Shown(None))


@contextmanager
def hearing(hear: Callable[[Told], None]) -> Iterator[None]:
    """Look on: `hear` gets all that is told within, in this thread."""
    token = _hearers.set((*_hearers.get(), hear))
    try:
        yield
    finally:
        _hearers.reset(token)
