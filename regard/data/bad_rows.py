"""Policy for rows that cannot be used: stop at the first, or skip and count (--data.on-bad)."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from regard.data.config import OnBad
from regard.errors import UserError

RowT = TypeVar("RowT")


class LeftOutError(UserError):
    """Error in a row that is left out and counted with any policy, such as one not annotated."""


class BadRows:
    """Policy for the bad rows (lines, images ...) of a data set, and those that are left out."""

    def __init__(self, on_bad: OnBad, noun: str = "rows") -> None:
        self.on_bad, self.noun, self.skipped = on_bad, noun, list[str]()
        self.remarks: list[str] = []

    def describe(self) -> str:
        """Return the number of rows that were left out and the first message; empty if none was."""
        count = len(self.skipped)
        return f"skipped {count:,} bad rows; first: {self.skipped[0]}" if count else ""

    def notices(self, origin: str | Path) -> tuple[str, ...]:
        """Return the remarks, and a line that tells how many were left out, and the first."""
        note = f"{origin}: skipped {len(self.skipped):,} of the {self.noun}; first: "
        return (*self.remarks, *(note + message for message in self.skipped[:1]))

    def add(self, message: str) -> None:
        """Leave a row out. Raises UserError with the message if on_bad is error."""
        if self.on_bad == "error":
            # Without a noun, no option leaves them out.
            end = "" if message.endswith((".", "?")) else "."
            hint = f" With --data.on-bad skip, such {self.noun} are left out and counted."
            raise UserError(f"{message}{end}{hint if self.noun else ''}")
        self.skipped.append(message)

    def in_order(self, rows: Iterable[RowT]) -> Iterator[tuple[str, RowT | None]]:
        """Yield each row with an empty message, and for each that is left out its message."""
        reported = len(self.skipped)
        for row in rows:
            for message in self.skipped[reported:]:
                yield message, None
            reported = len(self.skipped)
            yield "", row
        for message in self.skipped[reported:]:
            yield message, None

    @contextmanager
    def catch(self, where: str = "") -> Generator[None, None, None]:
        """Add the UserError that is raised in this block, naming `where`, and continue after it."""
        try:
            yield
        except UserError as error:
            problem = str(error) if where in str(error) else f"{where}: {error}"
            is_left_out = isinstance(error, LeftOutError)
        else:
            return
        if is_left_out:
            self.skipped.append(problem)
        else:
            self.add(problem)
