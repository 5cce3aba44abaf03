"""Classes that hold other functions than they were written with, by when they are first looked at or later."""

import textwrap

import pytest

from regard.engines.originals import Originals


class Parent:
    def asked(self) -> int:
        return 1


class Child(Parent):
    @property
    def told(self) -> int:
        return 2


@pytest.mark.parametrize("name", ["asked", "told", "added"])
@pytest.mark.parametrize("kind", [Parent, Child])
@pytest.mark.parametrize("foreign", [textwrap.dedent, property(textwrap.dedent), staticmethod(textwrap.dedent)])
def test_function_of_another_module_is_told_whenever_it_came(monkeypatch, kind, name, foreign):
    before = Originals([Child])
    assert before.changed() is None
    monkeypatch.setattr(kind, name, foreign, raising=False)
    assert before.changed() == f"{kind.__name__}.{name}"
    assert Originals([Child]).changed() == f"{kind.__name__}.{name}"


def test_function_of_the_same_module_is_told_if_it_came_later(monkeypatch):
    before = Originals([Child])
    monkeypatch.setattr(Parent, "asked", lambda self: 3)
    assert before.changed() == "Parent.asked"
    monkeypatch.undo()
    assert before.changed() is None


def test_what_is_no_function_may_change(monkeypatch):
    before = Originals([Child])
    monkeypatch.setattr(Child, "number", 1, raising=False)
    assert before.changed() is None
    assert before.changed() is None
