"""Telling: nothing is made for nobody, all who look on hear it, and only while they do."""

import threading

import pytest

from regard.telling import Rows, Shown, Step, Told, hearing, is_heard, showing, tell


def never() -> Told:
    raise AssertionError("it is made, but nobody looks on")


def test_what_nobody_hears_is_never_made():
    assert not is_heard()
    tell(never)
    with showing(never) as scenes:  # type: ignore[arg-type]
        assert scenes == []
        tell(never)


def test_what_is_told_is_made_once_and_heard_in_order():
    heard: list[Told] = []
    made = []

    def make() -> Told:
        made.append(len(made))
        return Step([0, 0, 1])

    with hearing(heard.append):
        assert is_heard()
        tell(make)
        tell(lambda: Rows([1, 0]))
    assert made == [0]
    assert heard == [Step([0, 0, 1]), Rows([1, 0])]
    assert not is_heard()
    tell(never)
    assert len(heard) == 2


def test_those_who_look_on_within_others_all_hear():
    outer: list[Told] = []
    inner: list[Told] = []
    made = []
    with hearing(outer.append):
        tell(lambda: Rows([0]))
        with hearing(inner.append):
            tell(lambda: made.append(1) or Rows([1]))  # type: ignore[func-returns-value]
        tell(lambda: Rows([2]))
    assert outer == [Rows([0]), Rows([1]), Rows([2])]
    assert inner == [Rows([1])]
    assert outer[1] is inner[0]
    assert made == [1]


def test_an_exception_ends_it_as_well():
    heard: list[Told] = []
    with pytest.raises(KeyError), hearing(heard.append), hearing(heard.append):
        raise KeyError
    assert not is_heard()
    with hearing(heard.append):
        with pytest.raises(KeyError), showing(lambda: ["a"]):
            raise KeyError
        assert heard == [Shown(["a"]), Shown(None)]


def test_scenes_are_given_back_to_be_completed():
    heard: list[Told] = []
    with hearing(heard.append), showing(lambda: [{"title": ""}]) as scenes:
        scenes[0]["title"] = "known later"
    assert heard == [Shown([{"title": "known later"}]), Shown(None)]
    assert heard[0].scenes is scenes


def test_what_runs_in_another_thread_is_not_heard():
    heard: list[Told] = []
    told = []

    def run() -> None:
        told.append(is_heard())
        tell(never)

    with hearing(heard.append):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert told == [False]
    assert heard == []
