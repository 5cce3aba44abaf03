"""Kinds of settings, and the conversion of text and JSON to their values."""

from pathlib import Path
from typing import Any, Literal

import pytest

from regard.settings.values import Kind, kind_of, suggest

GOOD = [
    (int, "3", 3),
    (int, 3, 3),
    (int, "-2", -2),
    (float, "1e-3", 0.001),
    (float, 2, 2.0),
    (float, "inf", float("inf")),
    (bool, "yes", True),
    (bool, "Off", False),
    (bool, True, True),
    (str, "3", "3"),
    (Path, "a/b", Path("a/b")),
    (Literal["post", "pre"], "pre", "pre"),
    (Literal[1, 2], "2", 2),
    (int | None, "none", None),
    (int | None, None, None),
    (int | None, "5", 5),
    (int | str | None, "5", 5),
    (int | str | None, "en", "en"),
    (tuple[str, ...], ["a", "b"], ("a", "b")),
    (tuple[str, ...], "a", ("a",)),
    (tuple[str, ...], [], ()),
    (tuple[float, float], ["0.9", 0.98], (0.9, 0.98)),
]

BAD = [
    (int, "3.5", "must be a whole number, got '3.5'"),
    (int, True, "must be a whole number, got True"),
    (int, "x" * 99, r", got 'x+\.\.\.$"),
    (float, "nan", "must be a number"),
    (float, False, "must be a number"),
    (bool, "maybe", "must be true or false"),
    (str, 3, "must be text, got 3"),
    (Path, "", "must be a path"),
    (Literal["post", "pre"], "pots", "must be post or pre, got 'pots'; did you mean post"),
    (
        Literal["none", "additive", "dot"],
        "addtive",
        "must be none, additive or dot.*did you mean additive",
    ),
    (Literal[1, 2], True, "must be 1 or 2"),
    (int | str | None, 2.5, "must be a whole number or text"),
    (tuple[float, float], ["0.9"], "must be 2 values"),
    (int, None, "must be a whole number, got None"),
]


@pytest.mark.parametrize(("annotation", "given", "expected"), GOOD)
def test_kind_reads_value(annotation: Any, given: object, expected: object) -> None:
    value = kind_of(annotation).convert(given)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(("annotation", "value", "message"), BAD)
def test_kind_refuses_value_naming_the_rule(annotation: Any, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind_of(annotation).convert(value)


@pytest.mark.parametrize(
    "annotation", [dict[int, int], int | list[int], int | tuple[int, ...], object, type]
)
def test_kind_of_refuses_unsupported_annotations(annotation: Any) -> None:
    with pytest.raises(TypeError, match="cannot be annotated"):
        kind_of(annotation)


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        (Kind(bases=(int,)), "INT"),
        (Kind(bases=(int, str), optional=True), "INT|TEXT"),
        (Kind(bases=(str,), choices=("a", "b")), "{a,b}"),
        (Kind(bases=(float,), count=2), "NUMBER NUMBER"),
        (Kind(bases=(str,), count=None), "TEXT ..."),
    ],
)
def test_label_names_the_kind_of_value(kind: Kind, label: str) -> None:
    assert kind.label == label


def test_suggest_names_only_similar_names() -> None:
    assert suggest("layrs", ["layers", "heads", "width"]) == "; did you mean layers?"
    assert suggest("zzz", ["layers", "heads"]) == ""
