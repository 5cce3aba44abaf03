"""Tokens of outputs that are still being decoded, for another thread.

    progress = DecodingProgress()
    with progress.follow():         # in the thread that decodes
        run.predict(texts, beam=1)
    progress.tokens(0)              # in any thread, at any time: output 0 so far

Greedy search and sampling only add tokens to an output; a beam search may replace all of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import takewhile

from regard.errors import UserError

UNWRITTEN = -1
"""Number in an array where there is no token yet."""


class DecodingProgress:
    """Tokens so far of each output, in the order of the inputs."""

    def __init__(self) -> None:
        self._count, self._first = 0, 0
        self._outputs: dict[int, tuple[Sequence[int], int | None]] = {}

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Receive the tokens of the outputs that this thread decodes meanwhile."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def begin(self, count: int) -> None:
        """Number `count` more outputs, whose rows are from 0 in `publish`."""
        self._first = self._count
        self._count += count

    def publish(
        self, rows: Iterable[int], outputs: Iterable[Sequence[int]], *, eos: int | None = None
    ) -> None:
        """Set where the tokens of outputs are written, followed by `UNWRITTEN` or `eos`, if any."""
        for row, output in zip(rows, outputs, strict=True):
            self._outputs[self._first + row] = output, eos

    def tokens(self, number: int) -> list[int]:
        """Return the tokens of an output so far (from 0), with which the final ones begin."""
        output, eos = self._outputs.get(number, ((), None))
        return list(takewhile(lambda token: token not in (UNWRITTEN, eos), output))


_CURRENT: ContextVar[DecodingProgress | None] = ContextVar("progress", default=None)


def begin_progress(count: int, *, beam: int = 1) -> DecodingProgress | None:
    """Return what receives the tokens of `count` outputs of this thread; None if nothing does."""
    progress = _CURRENT.get()
    if progress is not None:
        check_beam(beam)
        progress.begin(count)
    return progress


def check_beam(beam: int) -> None:
    """Raise UserError for a beam search, whose tokens are not final before its end."""
    if beam > 1:
        raise UserError(f"tokens can be read while decoding only with beam 1, got beam {beam}")
