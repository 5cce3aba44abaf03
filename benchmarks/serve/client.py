"""A generator of load: HTTP requests at due times, or on a fixed number of connections.

    python -m benchmarks.serve.client < JOB > RESULT        both JSON: `Job`, `Result`

It runs in a process of its own. A request with a due time is sent then, whatever is still
unanswered, on an idle connection or a new one, and its seconds count from when it was due.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import uvloop

__all__ = ["LEFT", "LOST", "Answer", "Job", "Result", "run"]

LEFT, LOST = -1, 0
"""Status of a request whose client left, and of one whose connection ended without an answer."""


class Job(msgspec.Struct):
    """Requests, and when they are sent."""

    port: int
    path: str
    bodies: list[str]
    """Bodies of the requests; a job of more requests begins again with the first."""
    due: list[float] | None = None
    """Seconds from the start to each request; None: one request after the other."""
    connections: int = 64
    """Number of connections without due times."""
    seconds: float | None = None
    """How long requests are sent without due times; None: until `count` are sent."""
    count: int = 0
    leave: dict[int, float] = {}
    """Numbers of requests whose client leaves, and after how many seconds."""
    keep: bool = False
    """Whether the bodies of the answers are kept."""


class Answer(NamedTuple):
    """An answer; times are in seconds from the start."""

    number: int
    due: float
    sent: float
    done: float
    status: int
    body: str = ""

    @property
    def seconds(self) -> float:
        """Time from when the request was due."""
        return self.done - self.due


class Result(msgspec.Struct):
    """Answers in the order in which they came, and CPU seconds of the generator."""

    answers: list[Answer]
    cpu: float


class _Connection(asyncio.Protocol):
    """A connection, which carries one request at a time."""

    def __init__(self, idle: list["_Connection"]):
        self.idle = idle
        self.transport: Any = None
        self.answered: Callable[[int, bytes], None] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def request(self, data: bytes, answered: Callable[[int, bytes], None]) -> None:
        """Send a request, and call `answered` with the status and body of its answer."""
        self.head, self.body, self.answered = b"", b"", answered
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.body += data
        if not self.head:
            head, blank, rest = self.body.partition(b"\r\n\r\n")
            if not blank:
                return
            self.head, self.body = head.lower(), rest
            self.size = int(self.head.partition(b"content-length:")[2].split(b"\r", 1)[0])
        if len(self.body) == self.size:
            if b"connection: close" not in self.head:
                self.idle.append(self)
            self._finish(int(self.head[9:12]), self.body)

    def connection_lost(self, _: Exception | None) -> None:
        if self in self.idle:
            self.idle.remove(self)
        self._finish(LOST)

    def leave(self, answered: Callable[[int, bytes], None]) -> None:
        """End the connection if it still carries the request whose answer `answered` takes."""
        if self.answered is answered:
            self._finish(LEFT)
            self.transport.abort()

    def _finish(self, status: int, body: bytes = b"") -> None:
        answered, self.answered = self.answered, None
        if answered is not None:
            answered(status, body)


class _Run:
    """A job and its answers."""

    def __init__(self, job: Job):
        self.job, self.answers, self.idle = job, list[Answer](), list[_Connection]()
        head = f"POST {job.path} HTTP/1.1\r\nHost: 127.0.0.1:{job.port}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: "
        bodies = [body.encode() for body in job.bodies]
        self.requests = [f"{head}{len(body)}\r\n\r\n".encode() + body for body in bodies]
        self.loop, self.start = asyncio.get_running_loop(), time.perf_counter()
        self.sent, self.tasks = 0, set[asyncio.Task]()

    def now(self) -> float:
        """Return the seconds from the start."""
        return time.perf_counter() - self.start

    def send(self, due: float) -> None:
        """Send the next request."""
        number, self.sent = self.sent, self.sent + 1
        if self.idle:
            self._send_on(self.idle.pop(), number, due)
        else:
            task = self.loop.create_task(self._connect(number, due))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _connect(self, number: int, due: float) -> None:
        try:
            _, connection = await self.loop.create_connection(
                lambda: _Connection(self.idle), "127.0.0.1", self.job.port
            )
        except OSError:
            self.answers.append(Answer(number, due, self.now(), self.now(), LOST))
        else:
            self._send_on(connection, number, due)

    def _send_on(self, connection: _Connection, number: int, due: float) -> None:
        sent = self.now()

        def answered(status: int, body: bytes) -> None:
            text = body.decode() if self.job.keep else ""
            self.answers.append(Answer(number, due, sent, self.now(), status, text))
            if self.job.due is None and not self.is_over():
                self.send(self.now())

        connection.request(self.requests[number % len(self.requests)], answered)
        if number in self.job.leave:
            self.loop.call_later(self.job.leave[number], connection.leave, answered)

    def is_over(self) -> bool:
        """Return whether no further request is sent, of a job without due times."""
        if self.job.seconds is None:
            return self.sent >= self.job.count
        return self.now() >= self.job.seconds

    async def finish(self) -> list[Answer]:
        """Send all requests, and return their answers."""
        if self.job.due is None:
            for _ in range(self.job.connections):
                if not self.is_over():
                    self.send(self.now())
        for due in self.job.due or ():
            if (wait := due - self.now()) > 0:
                await asyncio.sleep(wait)
            self.send(due)
        while len(self.answers) < self.sent:
            await asyncio.sleep(0.01)
        for connection in self.idle:
            connection.transport.close()
        return self.answers


def run(job: Job) -> list[Answer]:
    """Send the requests of a job, and return the answers in the order in which they came."""

    async def finish() -> list[Answer]:
        return await _Run(job).finish()

    return uvloop.run(finish())


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    answers = run(job)
    sys.stdout.buffer.write(msgspec.json.encode(Result(answers, time.process_time())))


if __name__ == "__main__":
    main()
