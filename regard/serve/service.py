"""The service: answers to inputs of several runs, by their workers."""

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from regard.errors import UserError
from regard.recipes.base.recipe import Answer, Example
from regard.recipes.base.trained import TrainedRun
from regard.serve.config import LimitsConfig
from regard.serve.looks import Looks
from regard.serve.metrics import Metrics
from regard.serve.problems import RequestError
from regard.serve.queue import Job
from regard.serve.requests import read_inputs
from regard.serve.runs import ServedRun

_SHORT = 2_000
"""Characters of texts that are prepared in the thread of the event loop."""
_POLL = 0.015
"""Seconds between two looks at the tokens of streamed answers."""
_MAX_LOOKS = 32
"""Looks that wait."""


class Counts(NamedTuple):
    """Number of tokens of an input and of its answer."""

    read: int = 0
    written: int = 0
    is_finished: bool = True
    """False if the answer is cut at the maximum length."""


class Reply(NamedTuple):
    """Answers as JSON, in the order of the inputs, and notes on the inputs."""

    answers: list[dict[str, Any]]
    notes: list[str]
    counts: list[Counts]
    """Of each answer."""


class Event(NamedTuple):
    """Event of a streamed answer: token, answer or done."""

    name: str
    data: dict[str, Any]
    counts: Counts | None = None
    """Of an answer."""


class Service:
    """Runs by name, and what they share: limits, looks and metrics."""

    def __init__(
        self,
        trained: Mapping[str, TrainedRun],
        limits: LimitsConfig,
        *,
        workers: int | None = None,
    ):
        self.limits, self.metrics, self.looks = limits, Metrics(), Looks()
        self.runs: dict[str, ServedRun] = {}
        for name, one in trained.items():
            self.runs[name] = ServedRun(name, one, limits, self.metrics, workers)
        self.is_draining = False
        self.held = 0
        """Bytes of the bodies of the requests in progress."""
        # Files are decoded in one thread, and looks are computed in another.
        self._preparing = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._looking = ThreadPoolExecutor(1, thread_name_prefix="look")
        self._num_looks, self._num_preparing = 0, 0
        self._copies: dict[str, TrainedRun] = {}
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
            raise RequestError(
                422, f"several runs are served, so give one as run: {names}", at="run"
            )
        if name is None:
            return next(iter(self.runs.values()))
        if name not in self.runs:
            raise RequestError(404, f"there is no run {name!r}; the runs are: {names}", at="run")
        return self.runs[name]

    async def answer(
        self,
        run: ServedRun,
        inputs: Sequence[Any],
        options: Mapping[str, Any],
        *,
        on_bad: str = "error",
        deadline: float | None = None,
    ) -> Reply:
        """Return the answers to inputs.

        Raises: RequestError for a wrong input, or if the deadline is missed.
        """
        jobs: list[Job | None] = []
        try:
            async with asyncio.timeout(self._seconds(deadline)):
                examples, notes, jobs = await self._submit(run, inputs, options, on_bad == "skip")
                await asyncio.gather(*(job.future for job in jobs if job is not None))
        except TimeoutError as error:
            raise RequestError(504, "the answer was not computed within the deadline") from error
        except ValueError as error:
            raise RequestError(422, str(error), at=_place(jobs)) from error
        finally:
            self._drop(run, jobs)
        answers, counts = self._answers(run, examples, jobs)
        return Reply(answers, notes, counts)

    async def stream(
        self,
        run: ServedRun,
        inputs: Sequence[Any],
        options: Mapping[str, Any],
        *,
        deadline: float | None = None,
    ) -> AsyncIterator[Event]:
        """Yield the tokens of answers while they are decoded, then the answers."""
        examples, notes, jobs = await self._submit(run, inputs, options, False, is_streamed=True)
        told = ["" for _ in jobs]
        pending = [job.future for job in jobs if job is not None]
        end = asyncio.get_running_loop().time() + self._seconds(deadline)
        try:
            while pending:
                _, rest = await asyncio.wait(pending, timeout=_POLL)
                pending = list(rest)
                for number, job in enumerate(jobs):
                    text = _partial_text(job)
                    if len(text) > len(told[number]):
                        new = text[len(told[number]) :]
                        told[number] = text
                        yield Event("token", {"input": number + 1, "text": new})
                if pending and asyncio.get_running_loop().time() > end:
                    raise RequestError(504, "the answer was not computed within the deadline")
            for answer, counts in zip(*self._answers(run, examples, jobs), strict=True):
                yield Event("answer", answer, counts)
        except ValueError as error:
            raise RequestError(422, str(error), at=_place(jobs)) from error
        finally:
            self._drop(run, jobs)
        yield Event("done", {"run": run.name, "weights": run.weights, "notes": notes})

    async def look(
        self, run: ServedRun, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the attention recorded while torch answers inputs, and the address of its page."""
        if self._num_looks >= _MAX_LOOKS:
            raise RequestError(429, "too many looks wait", headers={"Retry-After": "1"})
        self._num_looks += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._looking, self._look, run, inputs, options)
        finally:
            self._num_looks -= 1

    def _look(
        self, run: ServedRun, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> dict[str, Any]:
        # Recording adds hooks to the modules, so looks have a copy of the model.
        if run.name not in self._copies:
            model = copy.deepcopy(run.trained._model)
            self._copies[run.name] = TrainedRun(run.trained.recipe, model, run.trained.folder)
        try:
            kind, recipe = run.trained.input, run.trained.recipe
            values = read_inputs([*inputs], kind, self.limits, reads_tokens=recipe.reads_tokens)
            return self.looks.compute(self._copies[run.name], values, dict(options))
        except (TypeError, ValueError) as error:
            raise RequestError(422, str(error), at="look") from error

    async def _submit(
        self,
        run: ServedRun,
        inputs: Sequence[Any],
        options: Mapping[str, Any],
        is_skipping: bool,
        *,
        is_streamed: bool = False,
    ) -> tuple[list[Any], list[str], list[Job | None]]:
        """Prepare inputs and put them into the queue; the job of an error is None."""
        if self.is_draining:
            raise RequestError(503, "the service ends")
        recipe, key = run.change(options)
        if is_streamed:
            try:
                recipe.check_progress()
            except UserError as error:
                raise RequestError(422, str(error), at="stream") from error
        loop = asyncio.get_running_loop()
        characters = sum(len(value) for value in inputs if isinstance(value, str))
        is_short = run.trained.input == "text" and characters < _SHORT

        def prepare() -> tuple[list[Any], list[str]]:
            kind, tokens = run.trained.input, recipe.reads_tokens
            values = read_inputs([*inputs], kind, self.limits, reads_tokens=tokens)
            return run.prepare(values, recipe, is_skipping=is_skipping)

        if is_short:
            examples, notes = prepare()
        else:
            self._num_preparing += len(inputs)
            try:
                examples, notes = await loop.run_in_executor(self._preparing, prepare)
            finally:
                self._num_preparing -= len(inputs)
        jobs: list[Job | None] = []
        for example in examples:
            job = None
            if isinstance(example, Example):
                job = Job(example, recipe, key, loop.create_future(), is_streamed)
            jobs.append(job)
        run.workers.queue.put([job for job in jobs if job is not None])
        return examples, notes, jobs

    def _answers(
        self, run: ServedRun, examples: Sequence[Any], jobs: Sequence[Job | None]
    ) -> tuple[list[dict[str, Any]], list[Counts]]:
        answers: list[dict[str, Any]] = []
        counts: list[Counts] = []
        for number, (example, job) in enumerate(zip(examples, jobs, strict=True), start=1):
            if job is None:
                answers.append({"input": number, "error": str(example)})
                counts.append(Counts())
            else:
                answer: Answer = job.future.result()
                answers.append({"input": number, **answer.json})
                read = sum(len(getattr(row, "ids", ())) for row in example.rows)
                counts.append(Counts(read, answer.num_tokens, answer.is_finished))
        self.metrics.finish_inputs(run.name, len(answers))
        self.metrics.add_tokens(run.name, "input", sum(one.read for one in counts))
        self.metrics.add_tokens(run.name, "output", sum(one.written for one in counts))
        return answers, counts

    def _drop(self, run: ServedRun, jobs: Sequence[Job | None]) -> None:
        """Take the jobs that are not computed out of the queue."""
        known = [job for job in jobs if job is not None]
        for job in known:
            job.future.cancel()
        # Those of a request that failed or whose client left may be cancelled already.
        if any(job.future.cancelled() for job in known):
            run.workers.queue.remove(known)
        for job in known:
            if not job.future.cancelled():
                job.future.exception()  # another job's error was raised

    def _seconds(self, deadline: float | None) -> float:
        return self.limits.deadline if deadline is None else min(deadline, self.limits.deadline)


def _place(jobs: Sequence[Job | None]) -> str:
    """Return the place of the first input whose job failed."""
    for number, job in enumerate(jobs):
        future = None if job is None else job.future
        if future is not None and future.done() and not future.cancelled() and future.exception():
            return f"inputs[{number}]"
    return ""


def _partial_text(job: Job | None) -> str:
    """Return the text of the tokens of a job so far; all of it when it is computed."""
    if job is not None and job.future.done():
        return job.future.result().ranked[0].text
    if job is None or job.progress is None or not job.example.rows:
        return ""
    progress, row = job.progress
    return job.recipe.partial_text(job.example.rows[0], progress.tokens(row))
