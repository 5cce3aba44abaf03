"""Declaration of settings: dataclasses with values checked against annotations. (no torch)

    @settings
    class Coding:
        size: Annotated[int, Range(1, 1_000)] = 4
        form: Literal["soft", "hard"] = "soft"

The same annotations determine the command-line option, its help, and the values read from YAML and
run.json (regard.settings.values).
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, dataclass_transform, get_type_hints

from regard.errors import UserError
from regard.settings.values import Kind, kind_of

ClassT = TypeVar("ClassT", bound=type)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: ClassT) -> ClassT:
    """Make a class a frozen, keyword-only dataclass whose values are converted and checked.

    A method `__post_init__` of the class runs after these checks. Instances raise UserError with
    the name of the field, the rule and the value; a ValueError of `__post_init__` becomes one.
    """
    own = cls.__dict__.get("__post_init__")
    if own is not None or not hasattr(cls, "__post_init__"):

        def check(self: Any) -> None:
            for name in field_kinds(type(self)):
                object.__setattr__(self, name, convert(type(self), name, getattr(self, name)))
            try:
                if own is not None:
                    own(self)
            except ValueError as error:
                raise error if isinstance(error, UserError) else UserError(str(error)) from error

        cls.__post_init__ = check  # pyrefly: ignore[missing-attribute]
    return dataclass(frozen=True, kw_only=True)(cls)  # pyrefly: ignore[bad-return]


def check_unused(config: Any, names: Iterable[str], reason: str) -> None:
    """Raise ValueError for settings that have no effect, unless they are the default."""
    for name in names:
        value = getattr(config, name)
        if value != getattr(type(config), name):
            raise ValueError(f"{name} has no effect with {reason}: leave it out, got {value}")


def convert(cls: type, name: str, given: object) -> Any:
    """Convert the value of a field as given: text as typed, or a value of YAML or Python."""
    try:
        return field_kinds(cls)[name].convert(given)
    except ValueError as error:
        raise UserError(f"{name} {error}") from error


@functools.cache
def field_kinds(cls: type) -> dict[str, Kind]:
    """Return the kind of value of each field of a dataclass that its constructor takes, by name."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: kind_of(hints[field.name]) for field in fields(cls) if field.init}
