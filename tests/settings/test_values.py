"""Values of settings are converted to the annotations of fields, or refused."""

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest

from regard.cli.bench import BenchOptions
from regard.cli.evaluate import EvaluateOptions
from regard.cli.look import LookOptions
from regard.cli.predict import PredictOptions
from regard.cli.train import TrainOptions
from regard.errors import UserError
from regard.recipes.registry import RECIPES
from regard.settings.declare import field_kinds, settings
from regard.settings.help import page
from regard.settings.ranges import FractionWithin, Heads, Range, Width, check_device, short_repr
from regard.settings.tree import Group, collect_groups
from regard.settings.values import Kind, kind_of

OPTIONS = {
    "train": TrainOptions,
    "evaluate": EvaluateOptions,
    "predict": PredictOptions,
    "look": LookOptions,
    "bench": BenchOptions,
}
Rate = Annotated[float, Range(1e-12, 100)]
GOOD = [
    (int, "3", 3),
    (int, "-2", -2),
    (float, "1e-3", 0.001),
    (float, 2, 2.0),
    (float, "inf", math.inf),
    (bool, "yes", True),
    (bool, "Off", False),
    (str, "3", "3"),
    (str, "", ""),
    (str, ["a"], "a"),
    (Path, "a/b", Path("a/b")),
    (Literal["post", "pre"], "pre", "pre"),
    (Literal[1, 2], "2", 2),
    (int | None, "none", None),
    (int | None, None, None),
    (int | str | None, "5", 5),
    (int | str | None, "en", "en"),
    (tuple[str, ...], ["a", "b"], ("a", "b")),
    (tuple[str, ...], "a", ("a",)),
    (tuple[str, ...], [], ()),
    (tuple[float, float], ["0.9", 0.98], (0.9, 0.98)),
    (Rate, 100, 100.0),
    (Width, 1, 1),
    (Width, 65_536, 65_536),
    (Annotated[int, Range(1, 10)] | str | None, "x", "x"),
]
BAD = [
    (int, "3.5", "must be a whole number, got '3.5'"),
    (int, True, "must be a whole number, got True"),
    (int, None, "must be a whole number, got None"),
    (int, "x" * 99, r", got 'x+\.\.\.$"),
    (float, "nan", "must be a number"),
    (float, False, "must be a number"),
    (bool, "maybe", "must be true or false"),
    (bool, 1, "must be true or false, got 1"),
    (str, 3, "must be text, got 3"),
    (str, ["a", "b"], r"must be one value, got \['a', 'b'\]"),
    (Path, "", "must be a path"),
    (Literal["post", "pre"], "pots", "must be post or pre, got 'pots'"),
    (Literal["none", "additive", "dot"], None, "must be none, additive or dot, got None"),
    (Literal[1, 2], True, "must be 1 or 2, got True"),
    (int | str | None, 2.5, "must be a whole number or text"),
    (tuple[float, float], ["0.9"], "must be 2 values"),
    (tuple[Width, ...], (1, 0), "must be from 1 to 65,536, got 0"),
    (Width, 65_537, "must be from 1 to 65,536, got 65537"),
    (Width, 10**400, r"must be from 1 to 65,536, got 1000000000.*\.\.\.$"),
    (Width, 2.5, "must be a whole number, got 2.5"),
    (Rate, math.nan, "must be a number, got nan"),
    (Rate, math.inf, "must be from 1e-12 to 100, got inf"),
    (Rate, 10**400, "must be a number"),
    (FractionWithin, 0.0, "must be above 0 and below 1, got 0.0"),
    (FractionWithin, 1.0, "must be above 0 and below 1, got 1.0"),
    (Annotated[int, Range(1, 10)] | str | None, 0, "must be from 1 to 10, got 0"),
]


@pytest.mark.parametrize(("annotation", "given", "expected"), GOOD)
def test_value_is_converted(annotation: Any, given: object, expected: object) -> None:
    value = kind_of(annotation).convert(given)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(("annotation", "value", "message"), BAD)
def test_value_that_does_not_fit_is_refused(annotation: Any, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind_of(annotation).convert(value)


@pytest.mark.parametrize(
    "annotation", [dict[int, int], int | list[int], int | tuple[int, ...], object]
)
def test_unsupported_annotation_is_refused(annotation: Any) -> None:
    with pytest.raises(TypeError, match="cannot be annotated"):
        kind_of(annotation)


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        (Kind(bases=(int, str), optional=True), "INT|TEXT"),
        (Kind(bases=(str,), choices=("a", "b")), "{a,b}"),
        (Kind(bases=(float,), count=2), "NUMBER NUMBER"),
        (Kind(bases=(str,), count=None), "TEXT ..."),
    ],
)
def test_label_names_the_kind_of_value(kind: Kind, label: str) -> None:
    assert kind.label == label


@settings
class Leaf:
    name: ClassVar[str] = "leaf"

    form: Literal["soft", "hard"] = "soft"


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

    share: FractionWithin = 0.5


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("cls", [Stem, Branch])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"form": "sfot"}, "^form must be soft or hard, got 'sfot'$"),
        ({"width": 0}, "^width must be from 1 to 65,536, got 0$"),
        ({"width": 9}, "^width must be divisible by heads=2, got 9$"),
    ],
)
def test_settings_check_their_values(cls: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        cls(**change)
    with pytest.raises(UserError, match=message):
        dataclasses.replace(cls(), **change)


def test_settings_are_frozen_and_given_by_name() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Stem().width = 4  # pyrefly: ignore[read-only]
    with pytest.raises(TypeError, match="positional"):
        Stem(4)  # pyrefly: ignore[bad-argument-count]
    assert Branch(width=6, share=0.25) == Branch(share=0.25, width=6)
    assert list(field_kinds(Leaf)) == ["form"]


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda", "cuda:15", "mps", "xpu"])
def test_valid_device_names_are_accepted(name: str) -> None:
    check_device(name)


@pytest.mark.parametrize("name", ["", "meta", "CPU", "cuda:", "cuda:-1", "cuda:1000", "cpu\n"])
def test_device_of_another_name_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="device must be auto, cpu, cuda, cuda:1, mps or xpu, got"):
        check_device(name)


def test_short_repr_is_short() -> None:
    assert short_repr("a") == "'a'"
    assert len(short_repr("x" * 10_000)) == len(short_repr([1] * 1000)) == 60


@pytest.mark.parametrize("name", [*RECIPES, *OPTIONS])
def test_every_numeric_setting_has_a_finite_range_in_the_help(name: str) -> None:
    config = RECIPES[name].config() if name in RECIPES else OPTIONS[name]()
    groups: list[Group] = collect_groups(config)
    for group in tuple(groups):
        for setting in group.settings:
            for variant in setting.variants.values():
                groups += collect_groups(variant())
    for group in groups:
        text = " ".join(page("", "", [group]).split())
        for setting in group.settings:
            if {int, float} & set(setting.kind.bases) and not setting.kind.choices:
                assert setting.kind.within is not None, setting.path
                assert math.isfinite(setting.kind.within.least)
                assert math.isfinite(setting.kind.within.most)
                assert str(setting.kind.within).capitalize() in text, setting.path
