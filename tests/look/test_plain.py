"""What a file holds becomes dataclasses field by field, or is refused with the field's name."""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from regard.look.plain import made
from regard.look.scene import Axis, Box, Step


@dataclass(frozen=True, kw_only=True)
class Inner:
    number: int
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Outer:
    share: float
    is_there: bool = True
    maybe: str | None = None
    pair: tuple[float, float] = (0.0, 1.0)
    inner: tuple[Inner, ...] = ()
    facts: dict[str, Inner] = field(default_factory=dict)


GOOD = {"share": 1, "inner": [{"number": 2}], "facts": {"a": {"number": 3, "text": "b"}}, "pair": [1, 2], "maybe": None}


def test_dataclass_is_made_of_what_json_holds() -> None:
    found = made(Outer, GOOD, "file")
    inner, facts = (Inner(number=2),), {"a": Inner(number=3, text="b")}
    assert found == Outer(share=1.0, inner=inner, facts=facts, pair=(1.0, 2.0))
    assert type(found.share) is float


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"other": 1}, "^file has no 'other'$"),
        ({"share": "1"}, "^file.share must be a finite number, but is 1$"),
        ({"share": True}, "^file.share must be a finite number, but is True$"),
        ({"share": math.nan}, "^file.share must be a finite number, but is nan$"),
        ({"share": math.inf}, "^file.share must be a finite number, but is inf$"),
        ({"share": 10**400}, "^file.share must be a finite number, but is a number of many digits$"),
        ({"is_there": 1}, "^file.is_there must be true or false, but is 1$"),
        ({"maybe": 1}, "^file.maybe must be text, but is 1$"),
        ({"pair": [1]}, r"^file.pair must be 2 values, but is \[1\]$"),
        ({"pair": "12"}, "^file.pair must be a list, but is 12$"),
        ({"inner": [{"number": 1.0}]}, r"^file.inner\[0\].number must be a whole number, but is 1.0$"),
        ({"inner": [3]}, r"^file.inner\[0\] must be an object, but is 3$"),
        ({"inner": [{"text": "a"}]}, r"^file.inner\[0\] lacks 'number'$"),
        ({"facts": [1]}, r"^file.facts must be an object, but is \[1\]$"),
        ({"facts": {"a": "x" * 99}}, r"^file.facts.a must be an object, but is x+\.\.\.$"),
    ],
)
def test_what_a_field_does_not_take_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(Outer, GOOD | change, "file")


def test_parts_of_scenes_are_made() -> None:
    assert made(Axis, {"labels": ["a"], "places": [None]}, "axis") == Axis(labels=("a",), places=(None,))
    box = {"label": "a", "score": 1, "place": [0, 0, 1, 1], "query": 0}
    assert made(Box, box, "box").place == (0.0, 0.0, 1.0, 1.0)
    step = {"token": "a", "probability": 0.5, "alternatives": [{"token": "b", "probability": 0.25}], "beams": []}
    assert made(Step, step, "step").alternatives[0].token == "b"
