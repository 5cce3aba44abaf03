"""Declared settings are checked against the annotations of their fields."""

import dataclasses
from typing import Any, ClassVar, Literal

import pytest

from regard.settings.declare import field_kinds, settings
from regard.settings.ranges import Heads, Width


@settings
class Leaf:
    name: ClassVar[str] = "leaf"

    form: Literal["soft", "hard"] = "soft"
    level: Literal[1, 2] | None = None
    is_on: bool = True
    text: str = ""


@settings
class Stem(Leaf):
    """Adds a range and a check of its own."""

    width: Width = 8
    heads: Heads = 2
    leaf: Leaf = dataclasses.field(default_factory=Leaf)

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width must be divisible by heads={self.heads}, got {self.width}")


@settings
class Branch(Stem):
    """Inherits all checks."""

    shares: tuple[Width, ...] = ()


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"form": "sfot"}, "^form must be soft or hard, got 'sfot'$"),
        ({"form": None}, "^form must be soft or hard, got None$"),
        ({"level": 3}, "^level must be 1 or 2, got 3$"),
        ({"level": True}, "^level must be 1 or 2, got True$"),
        ({"is_on": 1}, "^is_on must be true or false, got 1$"),
        ({"width": 0}, "^width must be from 1 to 65,536, got 0$"),
        ({"width": None}, "^width must be from 1 to 65,536, got None$"),
        ({"width": "8"}, "^width must be from 1 to 65,536, got '8'$"),
        ({"width": 9}, "^width must be divisible by heads=2, got 9$"),
        ({"shares": (1, 0)}, r"^shares must be from 1 to 65,536, got \(1, 0\)$"),
    ],
)
def test_value_that_breaks_its_annotation_is_refused(change: dict[str, Any], message: str) -> None:
    owners = [cls for cls in (Leaf, Stem, Branch) if set(change) <= set(field_kinds(cls))]
    assert owners
    for cls in owners:
        with pytest.raises(ValueError, match=message):
            cls(**change)
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(cls(), **change)


def test_settings_are_frozen_and_given_by_name() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Stem().width = 4  # pyrefly: ignore[read-only]
    with pytest.raises(TypeError, match="positional"):
        Stem(4)  # pyrefly: ignore[bad-argument-count]
    assert Branch(width=6, level=2, shares=(1, 2)) == Branch(shares=(1, 2), level=2, width=6)


def test_kinds_of_fields_leave_class_variables_out() -> None:
    assert list(field_kinds(Leaf)) == ["form", "level", "is_on", "text"]
    assert field_kinds(Stem)["leaf"].bases == (Leaf,)


def test_field_of_an_unsupported_annotation_is_refused() -> None:
    @settings
    class Strange:
        value: object = None

    with pytest.raises(TypeError, match="a setting cannot be annotated"):
        Strange()
