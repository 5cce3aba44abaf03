"""Queue of inputs that wait for a worker.

A worker takes what waits, as one batch, as soon as it is free: nothing waits for a batch to fill.
The inputs of a batch have equal options.
"""

import threading
import time
from asyncio import Future
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.decode.progress import DecodingProgress
from regard.recipes.base.recipe import Answer, Example, Recipe

_BATCH = 64
"""Maximum number of inputs of a batch."""
_BATCH_SECONDS = 0.5
"""Maximum estimate of the seconds of a batch, whose answers come together."""
_ALWAYS = 16
"""Inputs that a batch may have even if they take longer: smaller ones cost more per input."""
_SMOOTHING = 0.1
"""Weight of the last batch in the mean seconds per input."""


@dataclass(eq=False)
class Job:
    """An input that is to be computed, and the future of its answer."""

    example: Example
    recipe: Recipe[Any]
    options: bytes
    """Options of its answer; jobs of a batch have the same."""
    future: "Future[Answer]"
    is_streamed: bool = False
    progress: tuple[DecodingProgress, int] | None = None
    """Tokens while they are decoded, and the row of this input, for a streamed answer."""
    begin: float = field(default_factory=time.perf_counter)


class Queue:
    """Jobs of one run, for its workers."""

    def __init__(self, num_workers: int):
        self._num_workers = num_workers
        self._jobs: deque[Job] = deque()
        self._condition = threading.Condition()
        self._is_closed = False
        self._seconds_per_job = 0.0
        self.running = 0

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def seconds(self) -> float:
        """Estimate of the seconds until all jobs are computed."""
        return (len(self._jobs) + self.running) * self._seconds_per_job

    @property
    def _most(self) -> int:
        """Maximum number of inputs of the next batch."""
        if not self._seconds_per_job:
            return _BATCH
        count = int(_BATCH_SECONDS / (self._seconds_per_job * self._num_workers))
        return min(_BATCH, max(_ALWAYS, count))

    def put(self, jobs: Sequence[Job]) -> None:
        with self._condition:
            self._jobs.extend(jobs)
            self._condition.notify(min(len(jobs), self._num_workers))

    def remove(self, jobs: Sequence[Job]) -> None:
        """Remove jobs that are still waiting."""
        with self._condition:
            for job in jobs:
                if job in self._jobs:
                    self._jobs.remove(job)

    def take(self) -> list[Job]:
        """Wait for jobs, and take this worker's share of them; none if the queue is closed."""
        with self._condition:
            while not self._jobs and not self._is_closed:
                self._condition.wait()
            if not self._jobs:
                return []
            most = min(self._most, -(-len(self._jobs) // self._num_workers))
            first, batch, rest = self._jobs[0], list[Job](), list[Job]()
            while self._jobs and len(batch) < most:
                job = self._jobs.popleft()
                if (job.options, job.is_streamed) == (first.options, first.is_streamed):
                    batch.append(job)
                else:
                    rest.append(job)
            self._jobs.extendleft(reversed(rest))
            if self._jobs:
                self._condition.notify()
            self.running += len(batch)
            return batch

    def finish(self, count: int, seconds: float) -> None:
        """Note that a worker has computed a batch."""
        mean = seconds / count / self._num_workers
        with self._condition:
            self.running -= count
            weight = _SMOOTHING if self._seconds_per_job else 1.0
            self._seconds_per_job += weight * (mean - self._seconds_per_job)

    def close(self) -> None:
        """Let the workers end when no job waits."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
