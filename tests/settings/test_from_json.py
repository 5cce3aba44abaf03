"""Dataclasses are parsed field by field, and invalid fields are named in the error."""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from regard.look.sample import Axis, DecodingStep, DetectedBox
from regard.settings.from_json import parse_dataclass


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


GOOD = {
    "share": 1,
    "inner": [{"number": 2}],
    "facts": {"a": {"number": 3, "text": "b"}},
    "pair": [1, 2],
    "maybe": None,
}


def test_dataclass_is_parsed_from_json() -> None:
    outer = parse_dataclass(Outer, GOOD, "file")
    inner, facts = (Inner(number=2),), {"a": Inner(number=3, text="b")}
    assert outer == Outer(share=1.0, inner=inner, facts=facts, pair=(1.0, 2.0))
    assert type(outer.share) is float


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"other": 1}, "^file has an unknown field 'other'$"),
        ({"share": "1"}, "^file.share must be a finite number, got 1$"),
        ({"share": True}, "^file.share must be a finite number, got True$"),
        ({"share": math.nan}, "^file.share must be a finite number, got nan$"),
        ({"share": math.inf}, "^file.share must be a finite number, got inf$"),
        ({"share": 10**400}, "^file.share must be a finite number, got a number of many digits$"),
        ({"is_there": 1}, "^file.is_there must be true or false, got 1$"),
        ({"maybe": 1}, "^file.maybe must be a string, got 1$"),
        ({"pair": [1]}, r"^file.pair must be 2 values, got \[1\]$"),
        ({"pair": "12"}, "^file.pair must be a list, got 12$"),
        ({"inner": [{"number": 1.0}]}, r"^file.inner\[0\].number must be an integer, got 1.0$"),
        ({"inner": [3]}, r"^file.inner\[0\] must be an object, got 3$"),
        ({"inner": [{"text": "a"}]}, r"^file.inner\[0\] must have the field 'number'$"),
        ({"facts": [1]}, r"^file.facts must be an object, got \[1\]$"),
        ({"facts": {"a": "x" * 99}}, r"^file.facts.a must be an object, got x+\.\.\.$"),
    ],
)
def test_invalid_fields_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_dataclass(Outer, GOOD | change, "file")


def test_parts_of_samples_are_parsed() -> None:
    assert parse_dataclass(Axis, {"labels": ["a"], "places": [None]}, "axis") == Axis(
        labels=("a",), places=(None,)
    )
    box = {"label": "a", "score": 1, "place": [0, 0, 1, 1], "query": 0}
    assert parse_dataclass(DetectedBox, box, "box").place == (0.0, 0.0, 1.0, 1.0)
    step = {
        "token": "a",
        "probability": 0.5,
        "alternatives": [{"token": "b", "probability": 0.25}],
        "beams": [],
    }
    assert parse_dataclass(DecodingStep, step, "step").alternatives[0].token == "b"
