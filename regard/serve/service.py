"""The service: answers to inputs of several runs, by their workers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from regard.errors import UserError
from regard.recipes.base.recipe import Answer, Example
from regard.recipes.base.trained import TrainedRun
from regard.serve.config import LimitsConfig
from regard.serve.looks import Looks
from regard.serve.metrics import Metrics
from regard.serve.queue import Job
from regard.serve.replies import RequestError
from regard.serve.requests import Query
from regard.serve.runs import ServedRun

_SHORT = 2_000
"""Characters of texts that are prepared in the thread of the event loop."""
_POLL = 0.015
"""Seconds between two looks at the tokens of streamed answers."""
_MAX_LOOKS = 32
"""Looks that wait."""


class Token(NamedTuple):
    """Text of the next tokens of an answer."""

    number: int
    """Number of the input, from 1."""
    text: str


class Reply(NamedTuple):
    """Answers to the inputs of a request."""

    answers: list[Any]
    """An `Answer` to each input, or the UserError of one that is skipped."""
    notes: list[str]
    """Notes on the inputs."""
    num_read: int
    """Number of tokens of the inputs."""
    examples: list[Example]
    """Rows and outputs of the inputs that are not skipped."""

    @property
    def num_written(self) -> int:
        """Number of tokens of the answers."""
        return sum(one.num_tokens for one in self.answers if isinstance(one, Answer))

    def to_json(self) -> list[dict[str, Any]]:
        """Return the answers with the numbers of their inputs."""
        entries = []
        for number, answer in enumerate(self.answers, start=1):
            content = answer.json if isinstance(answer, Answer) else {"error": str(answer)}
            entries.append({"input": number, **content})
        return entries


class Service:
    """Runs by name, and what they share: limits, looks and metrics."""

    def __init__(
        self, trained: Mapping[str, TrainedRun], limits: LimitsConfig, *, workers: int | None = None
    ):
        self.limits, self.metrics, self.looks = limits, Metrics(), Looks()
        self.runs: dict[str, ServedRun] = {}
        for name, one in trained.items():
            self.runs[name] = ServedRun(name, one, limits, self.metrics, workers)
        self.is_draining: Callable[[], bool] = lambda: False
        """Returns True when the process ends."""
        self.held = 0
        """Bytes of the bodies of the requests in progress."""
        # Files are decoded in one thread, and looks are computed in another.
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._looking = ThreadPoolExecutor(1, thread_name_prefix="look")
        self._num_looks, self._num_preparing = 0, 0
        self.metrics.watch("regard_waiting", "Inputs that wait.", lambda: self.waiting)
        self.metrics.watch("regard_running", "Inputs in work.", lambda: self.running)
        self.metrics.watch(
            "regard_wait_estimate_seconds", "Time until a new input is computed.", lambda: self.wait
        )

    def start(self) -> None:
        """Compile and start the workers."""
        for run in self.runs.values():
            run.warm_up()
            run.workers.start()

    def stop(self) -> None:
        """End after the inputs that were accepted."""
        for run in self.runs.values():
            run.workers.stop()
        self._preparing.shutdown()
        self._looking.shutdown()

    @property
    def wait(self) -> float:
        """Estimate of the seconds until all waiting inputs are computed."""
        return sum(run.workers.queue.seconds for run in self.runs.values())

    @property
    def waiting(self) -> int:
        """Number of inputs that wait to be prepared or computed."""
        return self._num_preparing + sum(len(run.workers.queue) for run in self.runs.values())

    @property
    def running(self) -> int:
        """Number of inputs that are computed."""
        return sum(run.workers.queue.running for run in self.runs.values())

    def check_room(self, size: int) -> None:
        """Raise RequestError 429 if there is no room for a request with a body of `size` bytes.

        The inputs that wait may be too many, take too long, or fill the memory.
        """
        wait, limits = self.wait, self.limits
        is_full = self.waiting >= limits.waiting or self.held + size > limits.memory
        if wait > limits.wait or is_full:
            headers = {"Retry-After": str(max(1, round(wait)))}
            raise RequestError(429, "too many inputs wait: try again later", headers=headers)

    def run(self, name: str | None) -> ServedRun:
        """Return the run of a name, or the only one. Raises: RequestError if there is none."""
        names = ", ".join(self.runs)
        if name is None and len(self.runs) > 1:
            text = f"several runs are served, so give one as run: {names}"
            raise RequestError(422, text, at="run")
        name = next(iter(self.runs)) if name is None else name
        if name not in self.runs:
            raise RequestError(404, f"there is no run {name!r}; the runs are: {names}", at="run")
        return self.runs[name]

    async def answer(self, run: ServedRun, query: Query) -> Reply:
        """Return the answers to inputs. Raises: RequestError as `stream`."""
        (reply,) = [one async for one in self.stream(run, query) if isinstance(one, Reply)]
        return reply

    async def stream(self, run: ServedRun, query: Query) -> AsyncIterator[Token | Reply]:
        """Yield the tokens of streamed answers while they are decoded, then the answers.

        Raises: RequestError for a wrong input, or if the deadline is missed.
        """
        jobs: list[Job] = []
        seconds = min(query.deadline or self.limits.deadline, self.limits.deadline)
        end = time.perf_counter() + seconds
        try:
            async with asyncio.timeout(seconds):
                jobs, notes = await self._submit(run, query)
            told = ["" for _ in jobs]
            pending = [job.future for job in jobs]
            while pending:
                rest = end - time.perf_counter()
                if rest <= 0:
                    raise TimeoutError
                timeout = min(_POLL, rest) if query.stream else rest
                pending = [*(await asyncio.wait(pending, timeout=timeout))[1]]
                for number, job in enumerate(jobs if query.stream else ()):
                    text = _partial_text(number, job)
                    if len(text) > len(told[number]):
                        yield Token(number + 1, text[len(told[number]) :])
                        told[number] = text
            yield self._reply(run, jobs, notes)
        except TimeoutError as error:
            raise RequestError(504, "the answer was not computed within the deadline") from error
        finally:
            left = [job for job in jobs if job.future.cancel()]
            run.workers.queue.remove(left)
            for job in jobs:
                if not job.future.cancelled():
                    job.future.exception()  # another job's error was raised

    async def look(self, run: ServedRun, query: Query, reply: Reply) -> dict[str, Any]:
        """Return the attention of answers, which torch reads again, and the address of its page."""
        if self._num_looks >= _MAX_LOOKS:
            raise RequestError(429, "too many looks wait", headers={"Retry-After": "1"})
        self._num_looks += 1
        try:
            recipe, _ = run.change(query.options)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._looking, lambda: self.looks.compute(run.copy, reply.examples, recipe)
            )
        finally:
            self._num_looks -= 1

    async def _submit(self, run: ServedRun, query: Query) -> tuple[list[Job], list[str]]:
        """Prepare inputs and put them into the queue; return their jobs, and notes on the inputs.

        An input that is skipped has its error as the result.
        """
        if self.is_draining():
            raise RequestError(503, "the service ends")
        recipe, key = run.change(query.options)
        if query.stream:
            try:
                recipe.check_progress()
            except UserError as error:
                raise RequestError(422, str(error), at="stream") from error
        loop = asyncio.get_running_loop()
        arguments = query.inputs, recipe, query.on_bad == "skip"
        characters = sum(len(value) for value in query.inputs if isinstance(value, str))
        if run.input == "text" and characters < _SHORT:
            examples, notes = run.prepare(*arguments)
        else:
            count = len(query.inputs)
            self._num_preparing += count
            try:
                preparing = loop.run_in_executor(self._preparing, run.prepare, *arguments)
                examples, notes = await preparing
            finally:
                self._num_preparing -= count
        jobs = []
        for example in examples:
            job = Job(example, recipe, key, loop.create_future(), query.stream)
            if isinstance(example, UserError):
                job.future.set_result(example)
            jobs.append(job)
        run.workers.queue.put([job for job in jobs if not job.future.done()])
        return jobs, notes

    def _reply(self, run: ServedRun, jobs: Sequence[Job], notes: list[str]) -> Reply:
        """Return the answers of jobs that are computed. Raises: RequestError if one failed."""
        answers = [_result(number, job) for number, job in enumerate(jobs)]
        examples = [job.example for job in jobs if isinstance(job.example, Example)]
        rows = [row for example in examples for row in example.rows]
        num_read = sum(len(getattr(row, "ids", ())) for row in rows)
        reply = Reply(answers, notes, num_read, examples)
        self.metrics.inputs.labels(run.name).inc(len(jobs))
        self.metrics.tokens.labels(run.name, "input").inc(num_read)
        self.metrics.tokens.labels(run.name, "output").inc(reply.num_written)
        return reply


def _result(number: int, job: Job) -> Any:
    """Return the answer to input `number`, from 0. Raises: RequestError with its place."""
    try:
        return job.future.result()
    except ValueError as error:
        raise RequestError(422, str(error), at=f"inputs[{number}]") from error


def _partial_text(number: int, job: Job) -> str:
    """Return the text of the tokens of a job so far; all of it when it is computed."""
    if job.future.done():
        return _result(number, job).ranked[0].text
    if job.progress is None or not job.example.rows:
        return ""
    progress, row = job.progress
    return job.recipe.partial_text(job.example.rows[0], progress.tokens(row))
