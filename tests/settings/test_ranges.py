import math
from typing import Annotated, Any

import pytest

from regard.cli.bench import BenchOptions
from regard.cli.evaluate import EvaluateOptions
from regard.cli.look import LookOptions
from regard.cli.predict import PredictOptions
from regard.cli.train import TrainOptions
from regard.errors import UserError
from regard.recipes.registry import RECIPES
from regard.settings.declare import settings
from regard.settings.help import page
from regard.settings.ranges import Fraction, FractionWithin, Range, Width, check_device, short_repr
from regard.settings.tree import Group, collect_groups

_OPTIONS = {
    "train": TrainOptions,
    "evaluate": EvaluateOptions,
    "predict": PredictOptions,
    "look": LookOptions,
    "bench": BenchOptions,
}


@settings
class RangedSettings:
    width: Width = 4
    rate: Annotated[float, Range(1e-12, 100)] = 1.0
    share: FractionWithin = 0.5
    several: tuple[Fraction, ...] = ()
    column: Annotated[int, Range(1, 10)] | str | None = None


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    "change",
    [
        {"width": 1},
        {"width": 65_536},
        {"rate": 100},
        {"rate": 1},
        {"several": (0, 1.0)},
        {"column": None},
        {"column": "x"},
    ],
)
def test_range_holds_both_ends(change: dict[str, Any]) -> None:
    RangedSettings(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "width must be from 1 to 65,536, got 0"),
        ({"width": 65_537}, "width must be from 1 to 65,536, got 65537"),
        ({"width": 10**400}, r"width must be from 1 to 65,536, got 1000000000.*\.\.\.$"),
        (
            {"width": 10**5000},
            "width must be from 1 to 65,536, got a number of thousands of digits",
        ),
        ({"width": True}, "width must be from 1 to 65,536, got True"),
        ({"width": 2.5}, "width must be a whole number from 1 to 65,536, got 2.5"),
        ({"rate": math.nan}, "rate must be from 1e-12 to 100, got nan"),
        ({"rate": math.inf}, "rate must be from 1e-12 to 100, got inf"),
        ({"share": 0.0}, "share must be above 0 and below 1, got 0.0"),
        ({"share": 1.0}, "share must be above 0 and below 1, got 1.0"),
        ({"several": (0.5, 1.5)}, r"several must be from 0 to 1, got \(0.5, 1.5\)"),
        ({"column": 0}, "column must be from 1 to 10, got 0"),
    ],
)
def test_value_out_of_its_range_is_refused(
    no_shape_checks: Any, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        RangedSettings(**change)


@pytest.mark.parametrize(
    "name", ["auto", "cpu", "cpu:0", "cuda", "cuda:0", "cuda:15", "mps", "xpu"]
)
def test_valid_device_names_are_accepted(name: str) -> None:
    check_device(name)


@pytest.mark.parametrize(
    "name", ["", "meta", "CPU", "cuda:", "cuda:-1", "cuda:1000", "cpu\n", "cuda:\u0663", "x" * 500]
)
def test_device_of_another_name_is_refused(name: str) -> None:
    with pytest.raises(
        UserError, match=r"device must be auto, cpu, cuda, cuda:1, mps or xpu, got '"
    ):
        check_device(name)


def test_short_repr_is_short_for_any_value() -> None:
    assert short_repr("a") == "'a'"
    assert all(
        len(short_repr(value)) <= 60 for value in ("x" * 10_000, 10**4000, 10**5000, [1] * 1000)
    )


@pytest.mark.parametrize("name", [*RECIPES, *_OPTIONS])
def test_every_numeric_setting_has_a_finite_range_in_the_help(name: str) -> None:
    every = _with_all_variants(
        collect_groups(RECIPES[name].config() if name in RECIPES else _OPTIONS[name]())
    )
    for group in every:
        for setting in group.settings:
            if {int, float} & set(setting.kind.bases) and not setting.kind.choices:
                assert setting.kind.within is not None, setting.path
                assert math.isfinite(setting.kind.within.least)
                assert math.isfinite(setting.kind.within.most)
                assert str(setting.kind.within).capitalize() in " ".join(
                    page("", "", [group]).split()
                ), setting.path


def _with_all_variants(selected: list[Group]) -> list[Group]:
    variants = [
        collect_groups(variant())
        for group in selected
        for setting in group.settings
        for variant in setting.variants.values()
    ]
    return [*selected, *(group for other in variants for group in other)]
