"""The load generator of benchmarks.serve counts right, against a server whose times are known."""

import asyncio
import itertools
import statistics
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("uvloop")

from benchmarks.serve.client import LEFT, LOST, Answer, Job, run
from benchmarks.serve.measures import arrivals, completed, quantile

SECONDS = 0.05


class Server:
    """Answers each body with itself after SECONDS, `429` at once, and `lost` never."""

    def __init__(self) -> None:
        self.bodies, self.connections, self.port = list[str](), 0, 0
        self.is_listening, self.loop = threading.Event(), asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_until_complete, args=(self.listen(),))

    async def listen(self) -> None:
        self.ended = asyncio.Event()
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.is_listening.set()
        async with server:
            await self.ended.wait()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.reply(reader, writer)
        finally:
            writer.close()

    async def reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.read(1000):  # a request is one packet
            body = head.partition(b"\r\n\r\n")[2]
            self.bodies.append(body.decode())
            if body == b"lost":
                break
            if body != b"429":
                await asyncio.sleep(SECONDS)
            status = b"429 No" if body == b"429" else b"200 OK"
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(body)))
            await asyncio.sleep(0.002)  # the body comes later
            writer.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    server.thread.start()
    server.is_listening.wait()
    yield server
    server.loop.call_soon_threadsafe(server.ended.set)
    server.thread.join()
    server.loop.close()


def run_apart(job: Job) -> list[Answer]:
    """Run a job in a thread: tests of a browser leave a running loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run, job).result()


def ask(server: Server, *bodies: str, **job: object) -> list[Answer]:
    """The answers in the order of the requests."""
    return sorted(run_apart(Job(server.port, "/", [*bodies], keep=True, **job)))  # type: ignore[arg-type]


def test_closed_loop_has_a_request_on_every_connection(server: Server) -> None:
    answers = ask(server, "a", "b", "c", count=20, connections=4)
    assert [answer.body for answer in answers] == [*"abcabcabcabcabcabcab"]
    assert sorted(server.bodies) == sorted(answer.body for answer in answers)
    assert server.connections == 4
    assert {answer.status for answer in answers} == {200}
    assert max(answer.done for answer in answers) >= 5 * SECONDS
    assert all(answer.seconds >= SECONDS for answer in answers)


def test_closed_loop_ends_after_its_seconds(server: Server) -> None:
    answers = ask(server, "a", seconds=0.3, connections=3)
    assert 3 <= len(answers) == len(server.bodies) <= 18
    assert max(answer.sent for answer in answers) < 0.3 + SECONDS


def test_open_loop_counts_from_when_a_request_was_due(server: Server) -> None:
    due = [0.0, 0.0, 0.0, 0.2, 0.2]
    answers = ask(server, "a", due=due)
    assert server.connections == 3  # the later two find them idle
    assert [answer.due for answer in answers] == due
    for answer in answers:
        assert answer.sent >= answer.due - 0.001  # timers count milliseconds
        assert answer.seconds == answer.done - answer.due >= SECONDS


def test_time_before_a_late_request_is_sent_counts(server: Server) -> None:
    (answer,) = ask(server, "a", due=[-1.0])
    assert answer.sent >= 0
    assert answer.seconds >= 1 + SECONDS


def test_refused_left_and_lost_requests(server: Server) -> None:
    answers = ask(server, "429", "lost", "a", "b", due=[0.0] * 4, leave={3: 0.01})
    assert [answer.status for answer in answers] == [429, LOST, 200, LEFT]
    assert answers[3].seconds >= 0.009  # timers count milliseconds


def test_client_that_leaves_late_disturbs_no_later_request(server: Server) -> None:
    answers = ask(server, "a", count=3, connections=1, leave={0: 1.5 * SECONDS})
    assert [answer.status for answer in answers] == [200, 200, 200]


def test_no_server(server: Server) -> None:
    answers = run_apart(Job(1, "/", ["a"], due=[0.0]))
    assert [answer.status for answer in answers] == [LOST]


def test_arrivals_are_a_poisson_process() -> None:
    times = arrivals(100.0, 5.0, 105.0, seed=1)
    assert times == arrivals(100.0, 5.0, 105.0, seed=1) == sorted(times)
    assert 5.0 < times[0] < times[-1] < 105.0
    assert len(times) == pytest.approx(10_000, abs=300)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert statistics.pstdev(gaps) == pytest.approx(0.01, rel=0.05)


def test_completed_counts_answers_between_two_times() -> None:
    answers = [Answer(0, 0.0, 0.0, done, 200) for done in (0.9, 1.0, 2.0, 2.9, 3.0)]
    answers.append(Answer(5, 0.0, 0.0, 1.5, 429))
    assert completed(answers, 1.0, 3.0) == 1.5


@pytest.mark.parametrize(("share", "value"), [(0.5, 2.0), (0.51, 3.0), (0.99, 4.0), (1.0, 4.0)])
def test_quantile(share: float, value: float) -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], share) == value
