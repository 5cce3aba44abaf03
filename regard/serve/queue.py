"""Queue of inputs, and the threads that compute their answers.

A thread takes what waits, as one batch, as soon as it is free: nothing waits for a batch to fill.
The inputs of a batch have equal options.
"""

import logging
import threading
import time
from asyncio import Future
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.decode.progress import DecodingProgress
from regard.recipes.base.recipe import Recipe
from regard.recipes.base.trained import TrainedRun

_LOG = logging.getLogger("regard.serve")
_SMOOTHING = 0.1
"""Weight of the last batch in the mean seconds per input."""


@dataclass(eq=False)
class Job:
    """An input that is to be computed, and the future of its answer."""

    example: Any
    """An `Example`; or the UserError of an input that is skipped, which is not in the queue."""
    recipe: Recipe[Any]
    options: bytes
    """Options of its answer; jobs of a batch have the same."""
    future: "Future[Any]"
    """`Answer`, or the UserError."""
    is_streamed: bool = False
    progress: tuple[DecodingProgress, int] | None = None
    """Tokens while they are decoded, and the row of this input, for a streamed answer."""
    begin: float = field(default_factory=time.perf_counter)


class Queue:
    """Jobs of one run, for its workers.

    batch: maximum number of inputs that a worker takes at once.
    """

    def __init__(self, num_workers: int, batch: int):
        self._num_workers, self._batch = num_workers, batch
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
            most = min(self._batch, -(-len(self._jobs) // self._num_workers))
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


class Workers:
    """Threads of a run, each with an engine of its own that has the same weights.

    batch: maximum number of inputs that a thread computes at once.
    observe: called with the seconds that each job waited.
    """

    def __init__(
        self, trained: TrainedRun, count: int, batch: int, observe: Callable[[float], None]
    ):
        self.queue, self._observe = Queue(count, batch), observe
        self._threads = []
        for _ in range(count):
            thread = threading.Thread(target=self._work, args=(trained.share(),), daemon=True)
            self._threads.append(thread)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End when all jobs are computed."""
        self.queue.close()
        for thread in self._threads:
            thread.join()

    def _work(self, trained: TrainedRun) -> None:
        while jobs := self.queue.take():
            begin = time.perf_counter()
            for job in jobs:
                self._observe(begin - job.begin)
            results = self._compute(trained, jobs)
            self.queue.finish(len(jobs), time.perf_counter() - begin)
            loop = jobs[0].future.get_loop()
            loop.call_soon_threadsafe(_deliver, jobs, results)

    def _compute(self, trained: TrainedRun, jobs: Sequence[Job]) -> list[Any]:
        """Return the answer of each job, or its error: a bad input fails alone."""
        progress = None
        if jobs[0].is_streamed:
            progress, row = DecodingProgress(), 0
            for job in jobs:
                job.progress = progress, row
                row += len(job.example.rows)  # an empty text has none
        examples = [job.example for job in jobs]
        try:
            return trained.compute(examples, jobs[0].recipe, progress)
        except Exception as error:  # noqa: BLE001 (told to the request)
            for example in examples:
                example.outputs.clear()
            if len(jobs) == 1:
                if not isinstance(error, ValueError):
                    _LOG.exception("an input could not be computed")
                return [error]
        results = []
        for job in jobs:
            results += self._compute(trained, [job])
        return results


def _deliver(jobs: Sequence[Job], results: Sequence[Any]) -> None:
    for job, result in zip(jobs, results, strict=True):
        if job.future.done():  # cancelled by the request
            continue
        if isinstance(result, Exception):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)
