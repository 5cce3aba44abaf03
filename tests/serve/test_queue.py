"""Workers share what waits, and batches hold inputs with equal options."""

import asyncio
import threading
from unittest.mock import create_autospec

import pytest

from regard.recipes.base.recipe import Example, Recipe
from regard.serve.queue import Job, Queue


def make_jobs(options: str) -> list[Job]:
    """Return a job for each letter, with this letter as its options."""
    loop = asyncio.new_event_loop()
    recipe = create_autospec(Recipe, instance=True)
    jobs = []
    for number, letter in enumerate(options):
        example = Example(f"{letter}{number}", [])
        jobs.append(Job(example, recipe, letter.encode(), loop.create_future()))
    loop.close()
    return jobs


def names(jobs: list[Job]) -> list[str]:
    return [job.example.name for job in jobs]


def test_worker_takes_its_share_of_what_waits() -> None:
    queue = Queue(2, 16)
    queue.put(make_jobs("aaaaa"))
    assert names(queue.take()) == ["a0", "a1", "a2"]
    assert names(queue.take()) == ["a3"]
    assert (len(queue), queue.running) == (1, 4)


def test_batch_is_bounded() -> None:
    queue = Queue(1, 7)
    queue.put(make_jobs("a" * 10))
    assert (len(queue.take()), len(queue.take())) == (7, 3)


def test_batch_has_equal_options_and_the_others_keep_their_order() -> None:
    queue = Queue(1, 64)
    queue.put(make_jobs("abacb"))
    assert names(queue.take()) == ["a0", "a2"]
    assert names(queue.take()) == ["b1", "b4"]
    assert names(queue.take()) == ["c3"]


def test_removed_job_is_not_computed() -> None:
    queue, jobs = Queue(1, 64), make_jobs("aaa")
    queue.put(jobs)
    queue.remove(jobs[1:2])
    assert names(queue.take()) == ["a0", "a2"]
    queue.remove(jobs)  # they are with a worker by now


def test_closed_queue_hands_out_what_waits_and_then_nothing() -> None:
    queue = Queue(1, 64)
    queue.put(make_jobs("a"))
    queue.close()
    assert names(queue.take()) == ["a0"]
    assert queue.take() == []


def test_take_waits_for_a_job() -> None:
    queue, found = Queue(1, 64), list[str]()
    thread = threading.Thread(target=lambda: found.extend(names(queue.take())), daemon=True)
    thread.start()
    queue.put(make_jobs("a"))
    thread.join(timeout=10)
    assert found == ["a0"]


def test_seconds_are_those_of_the_jobs_that_are_not_computed() -> None:
    queue = Queue(2, 16)
    queue.put(make_jobs("aaaa"))
    assert queue.seconds == 0  # nothing is known
    count = len(queue.take())
    queue.finish(count, seconds=1.0)  # 2 jobs in 1 s by one of two workers
    assert queue.running == 0
    assert queue.seconds == pytest.approx(2 * 0.25)
    assert (len(queue.take()), queue.running) == (1, 1)
    assert queue.seconds == pytest.approx(2 * 0.25)
