"""One policy for rows that cannot be used: stop at the first, or leave them out and count them
(--data.on-bad)."""

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from regard.data.config import OnBad
from regard.errors import UserError
from regard.system.terminal import format_count


class BadRow(Exception):  # noqa: N818 - as StopIteration, it is a signal between two of our modules
    """Row that cannot be used: `reason` is the category under which it is counted, `detail` the
    message."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Skipped(Sequence[str]):
    """Messages about the rows that were left out (on_bad = skip), each naming its file and line,
    and their reasons."""

    messages: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.messages)

    def __getitem__(self, index: Any) -> Any:  # an index or a slice, as of a tuple
        return self.messages[index]

    @property
    def counts(self) -> dict[str, int]:
        """Number of rows by reason, in the order in which the reasons were found."""
        return dict(Counter(self.reasons))

    def describe(self) -> str:
        """Return a summary: one line per reason, with its first message. Empty if nothing was left
        out."""
        first = dict(reversed(list(zip(self.reasons, self.messages, strict=True))))
        rows = [
            f"  {count} x {reason}; first: {first[reason]}" for reason, count in self.counts.items()
        ]
        return "\n".join([f"skipped {format_count(len(self), 'bad line')}:", *rows]) if rows else ""


_NONE = Skipped()
SKIP_HINT = "With --data.on-bad skip"
"""Begin of the sentence that names the option of training and evaluation."""


class BadRows:
    """Policy for the bad rows of one data set, and collector of those that are left out.

    noun: what is left out, in messages: lines, sentences, images ...
    """

    def __init__(self, on_bad: OnBad, noun: str = "lines", *, before: Skipped = _NONE) -> None:
        self.on_bad, self.noun = on_bad, noun
        self._messages, self._reasons = list(before.messages), list(before.reasons)

    @property
    def skipped(self) -> Skipped:
        """Rows that were left out until now."""
        return Skipped(tuple(self._messages), tuple(self._reasons))

    def add(self, message: str, reason: str = "unusable") -> None:
        """Leave a row out. Raises UserError with the message, and how to leave it out, if on_bad is
        error."""
        if self.on_bad == "error":
            raise UserError(with_hint(message, self.noun))
        self.leave_out(message, reason)

    def leave_out(self, message: str, reason: str) -> None:
        """Leave a row out, whatever on_bad is."""
        self._messages.append(message)
        self._reasons.append(reason)

    @contextmanager
    def catch(self, where: str = "") -> Generator[None, None, None]:
        """Add the BadRow at `where`, or the UserError, that is raised in this block, and continue
        after it."""
        try:
            yield
        except BadRow as bad:
            message, reason = f"{where}: {bad.detail}", bad.reason
        except UserError as error:
            message, reason = str(error), "unusable"
        else:
            return
        self.add(message, reason)


def with_hint(message: str, noun: str) -> str:
    """Return the message about a bad row, with the option that leaves such rows out."""
    end = "" if message.endswith((".", "?")) else "."
    return f"{message}{end} {SKIP_HINT}, such {noun} are left out and counted."
