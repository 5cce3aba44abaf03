"""Threads that share a run: many predict at once, and a recording contains the predictions of its
own thread only."""

import copy
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from regard.errors import UserError
from regard.recipes.base.active import Turns


def in_thread(function):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def predict(turns: Turns) -> str:
    with turns.predict():
        return "predicted"


def test_other_threads_predict_at_once_but_not_during_a_recording():
    turns = Turns()
    with turns.predict():
        assert in_thread(lambda: predict(turns)) == "predicted"
    with turns.record(), turns.record():
        assert predict(turns) == "predicted"
        with pytest.raises(UserError, match="another thread records the attention of this run"):
            in_thread(lambda: predict(turns))
        assert in_thread(lambda: predict(copy.deepcopy(turns))) == "predicted"
    assert in_thread(lambda: predict(turns)) == "predicted"


def test_recording_begins_when_the_predictions_of_other_threads_have_ended():
    turns, started, order = Turns(), threading.Event(), []

    def slow():
        with turns.predict():
            started.set()
            time.sleep(0.2)
            order.append("predicted")

    thread = threading.Thread(target=slow)
    thread.start()
    started.wait()
    with turns.record():
        order.append("recorded")
    thread.join()
    assert order == ["predicted", "recorded"]


def test_second_recording_of_another_thread_is_refused():
    turns = Turns()

    def record():
        with turns.record():
            pass

    with turns.record(), pytest.raises(UserError, match="another thread records"):
        in_thread(record)
    in_thread(record)
