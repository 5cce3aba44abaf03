"""Trace events: built only if there is a subscriber, sent to all subscribers, and only inside the subscription."""

import threading

import pytest

from regard.trace import RowOrder, SampleBatch, SearchStep, TraceEvent, emit, is_traced, span, subscribe


def fail() -> TraceEvent:
    raise AssertionError("an event was built without a subscriber")


def test_events_are_not_built_without_subscribers():
    assert not is_traced()
    emit(fail)
    with span(fail) as samples:  # type: ignore[arg-type]
        assert samples == []
        emit(fail)


def test_events_are_built_once_and_received_in_order():
    received: list[TraceEvent] = []
    built = []

    def make_event() -> TraceEvent:
        built.append(len(built))
        return SearchStep([0, 0, 1])

    with subscribe(received.append):
        assert is_traced()
        emit(make_event)
        emit(lambda: RowOrder([1, 0]))
    assert built == [0]
    assert received == [SearchStep([0, 0, 1]), RowOrder([1, 0])]
    assert not is_traced()
    emit(fail)
    assert len(received) == 2


def test_nested_subscribers_all_receive_events():
    outer: list[TraceEvent] = []
    inner: list[TraceEvent] = []
    built = []
    with subscribe(outer.append):
        emit(lambda: RowOrder([0]))
        with subscribe(inner.append):
            emit(lambda: built.append(1) or RowOrder([1]))  # type: ignore[func-returns-value]
        emit(lambda: RowOrder([2]))
    assert outer == [RowOrder([0]), RowOrder([1]), RowOrder([2])]
    assert inner == [RowOrder([1])]
    assert outer[1] is inner[0]
    assert built == [1]


def test_subscription_and_span_end_on_exceptions():
    received: list[TraceEvent] = []
    with pytest.raises(KeyError), subscribe(received.append), subscribe(received.append):
        raise KeyError
    assert not is_traced()
    with subscribe(received.append):
        with pytest.raises(KeyError), span(lambda: ["a"]):
            raise KeyError
        assert received == [SampleBatch(["a"]), SampleBatch(None)]


def test_span_yields_samples_that_can_be_completed():
    received: list[TraceEvent] = []
    with subscribe(received.append), span(lambda: [{"title": ""}]) as samples:
        samples[0]["title"] = "known later"
    assert received == [SampleBatch([{"title": "known later"}]), SampleBatch(None)]
    assert received[0].samples is samples


def test_events_of_other_threads_are_not_received():
    received: list[TraceEvent] = []
    traced = []

    def run() -> None:
        traced.append(is_traced())
        emit(fail)

    with subscribe(received.append):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert traced == [False]
    assert received == []
