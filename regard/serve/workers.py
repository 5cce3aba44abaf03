"""Threads that compute the answers of a run."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from regard.decode.progress import DecodingProgress
from regard.recipes.base.trained import TrainedRun
from regard.serve.queue import Job, Queue

_LOG = logging.getLogger("regard.serve")


class Workers:
    """Threads of a run, each with an engine of its own that has the same weights."""

    def __init__(self, trained: TrainedRun, count: int, observe: Callable[[float], None]):
        self.queue = Queue(count)
        self._observe = observe
        """Called with the seconds that each job waited."""
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
