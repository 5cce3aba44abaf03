"""Campaigns of random cases, each a pure function of a seed and a number, so reproducible.

Cases run in separate processes, so that a crash ends only its case and a hang is detected.
"""

import json
import os
import select
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

__all__ = ["Campaign", "Outcome", "Tally", "gather"]


@dataclass(frozen=True)
class Outcome:
    """Result of a case."""

    kind: str
    """In a word or two: equal, refused, traceback ..."""
    case: str
    """Description of the case."""
    detail: str = ""
    """Information to find the cause; cases with the same cause should share it."""


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Random cases of one kind."""

    name: str
    about: str
    cases: int
    """Number of cases in a full run."""
    run: Callable[[int, int], Outcome]
    """Run the case of a seed and a number; an exception is an outcome of kind `exception`."""
    fine: frozenset[str]
    """Kinds of outcomes that are expected."""
    seconds: float = 120.0
    """Time limit of a case."""


@dataclass
class Tally:
    """Outcomes, counted by kind and detail."""

    campaign: Campaign
    seed: int
    counts: dict[tuple[str, str], list[tuple[int, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    began: float = field(default_factory=time.monotonic)

    def add(self, number: int, outcome: Outcome) -> None:
        """Count an outcome."""
        detail = "" if outcome.kind in self.campaign.fine else outcome.detail
        self.counts[outcome.kind, detail].append((number, outcome.case))

    @property
    def num_bad(self) -> int:
        """Number of unexpected outcomes."""
        return sum(
            len(cases) for (kind, _), cases in self.counts.items() if kind not in self.campaign.fine
        )

    def table(self) -> str:
        """Return a table of the outcomes, with the first case of each unexpected one."""
        total = sum(map(len, self.counts.values()))
        minutes = (time.monotonic() - self.began) / 60
        cost = f"{total:,} cases of seed {self.seed}, {minutes:.1f} min"
        lines = [f"{self.campaign.name}: {cost}, {self.num_bad} not as expected"]
        for (kind, detail), cases in sorted(self.counts.items(), key=lambda item: -len(item[1])):
            lines.append(f"  {len(cases):6,}  {kind}{': ' if detail else ''}{detail[:300]}")
            if kind not in self.campaign.fine:
                lines.append(
                    f"          first {', '.join(str(number) for number, _ in cases[:5])}: "
                    f"{cases[0][1][:300]}"
                )
        return "\n".join(lines)


def gather(
    campaign: Campaign, *, seed: int, cases: int, processes: int
) -> Iterator[tuple[int, Outcome]]:
    """Yield the outcomes of cases 0 .. cases - 1 as they end, with progress on a terminal."""
    workers = [
        _Worker(campaign, seed, range(first, cases, processes))
        for first in range(min(processes, cases))
    ]
    start, count = time.monotonic(), 0
    try:
        while workers:
            readable, _, _ = select.select([worker.pipe for worker in workers], [], [], 1.0)
            for worker in list(workers):
                for number, outcome in (
                    worker.read() if worker.pipe in readable else worker.overdue()
                ):
                    count += 1
                    yield number, outcome
                if worker.is_done:
                    workers.remove(worker)
            if sys.stderr.isatty():
                rate = count / (time.monotonic() - start)
                print(
                    f"\r{campaign.name}: {count:,} of {cases:,}, {rate:.1f} a second ",
                    end="",
                    file=sys.stderr,
                )
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """Process that runs some of the cases; restarted after a case that crashes it."""

    def __init__(self, campaign: Campaign, seed: int, numbers: range):
        self.campaign, self.seed, self.left = campaign, seed, list(numbers)
        self.start()

    def start(self) -> None:
        """Fork; the child sends a line of JSON after each case."""
        sys.stdout.flush()
        self.pipe, child_end = os.pipe()
        self.text, self.is_done, self.since = b"", False, time.monotonic()
        self.child = os.fork()
        if self.child == 0:
            os.close(self.pipe)
            os.setpgid(0, 0)
            with os.fdopen(child_end, "wb", buffering=0) as pipe:
                for number in self.left:
                    outcome = _run(self.campaign, self.seed, number)
                    pipe.write(
                        json.dumps([number, outcome.kind, outcome.case, outcome.detail]).encode()
                        + b"\n"
                    )
            os._exit(0)
        os.close(child_end)

    def read(self) -> Iterator[tuple[int, Outcome]]:
        """Yield the outcomes so far; at the end of the pipe, why the process ended."""
        part = os.read(self.pipe, 1 << 16)
        if not part:
            status = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
            yield from self._finish(f"exit status {status}")
            return
        *lines, self.text = (self.text + part).split(b"\n")
        for line in lines:
            number, kind, case, detail = json.loads(line)
            self.left.remove(number)
            self.since = time.monotonic()
            yield number, Outcome(kind, case, detail)

    def overdue(self) -> Iterator[tuple[int, Outcome]]:
        """End a case that takes too long."""
        if time.monotonic() - self.since > self.campaign.seconds:
            self.end()
            yield from self._finish(f"hangs: over {self.campaign.seconds:.0f} s")

    def end(self) -> None:
        """Kill the process and its children."""
        os.killpg(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)

    def _finish(self, reason: str) -> Iterator[tuple[int, Outcome]]:
        os.close(self.pipe)
        if not self.left:
            self.is_done = True
            return
        number = self.left.pop(0)
        self.start()
        yield number, Outcome("crash", f"case {number} of seed {self.seed}", reason)


def _run(campaign: Campaign, seed: int, number: int) -> Outcome:
    try:
        return campaign.run(seed, number)
    except Exception as error:  # noqa: BLE001  # any exception is a finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        location = f"{'/'.join(where.filename.split('/')[-2:])}:{where.lineno}"
        detail = f"{type(error).__name__}: {str(error)[:200]} at {location}"
        return Outcome("exception", f"case {number} of seed {seed}", detail)
