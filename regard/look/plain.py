"""Dataclasses from what JSON holds, checked field by field: files come from anywhere.

A field's annotation says what it takes: text, whole numbers, finite numbers, truth values, tuples of these (any number,
or exactly so many), other dataclasses, None, dicts of these by name. Nothing is imported by name.
"""

import dataclasses
import functools
import math
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Made = TypeVar("Made")


def made(cls: type[Made], content: object, where: str) -> Made:
    """An instance of a dataclass; fields that are left out have their defaults.

    Raises: ValueError saying where, for a name that is no field, one that is missing, a value of another kind, a number
            that is not finite, and what the dataclass itself refuses.
    """
    if not isinstance(content, Mapping):
        raise _wrong(where, "an object", content)
    hints = _hints(cls)
    if unknown := [name for name in content if name not in hints]:
        raise ValueError(f"{where} has no {str(unknown[0])[:60]!r}")
    found = {name: _value(hints[name], value, f"{where}.{name}") for name, value in content.items()}
    if missing := _required(cls) - set(found):
        raise ValueError(f"{where} lacks {min(missing)!r}")
    return cls(**found)


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _value(inner[0], value, where)  # `X | None` alone
    if origin is tuple:
        return _tuple(inner, value, where)
    if origin is dict:
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        return {str(name): _value(inner[1], one, f"{where}.{name}") for name, one in value.items()}
    return made(hint, value, where) if dataclasses.is_dataclass(hint) else _scalar(hint, value, where)


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float:
        # As Python's own conversion overflows for a whole number of hundreds of digits.
        if not _is_number(value) or not abs(value) < 1e300 or not math.isfinite(value):
            raise _wrong(where, "a finite number", value)
        return float(value)
    if type(value) is not hint:
        raise _wrong(where, {str: "text", int: "a whole number", bool: "true or false"}[hint], value)
    return value


def _tuple(inner: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _wrong(where, "a list", value)
    if inner[-1] is Ellipsis:
        return tuple(_value(inner[0], one, f"{where}[{number}]") for number, one in enumerate(value))
    if len(value) != len(inner):
        raise _wrong(where, f"{len(inner)} values", value)
    pairs = enumerate(zip(inner, value, strict=True))
    return tuple(_value(hint, one, f"{where}[{number}]") for number, (hint, one) in pairs)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wrong(where: str, expected: str, got: object) -> ValueError:
    text = str(got) if not isinstance(got, int) or got.bit_length() < 200 else "a number of many digits"
    return ValueError(f"{where} must be {expected}, but is {text if len(text) <= 60 else f'{text[:57]}...'}")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


@functools.cache
def _required(cls: Any) -> frozenset[str]:
    none = dataclasses.MISSING
    fields = dataclasses.fields(cls)
    return frozenset(one.name for one in fields if one.default is none and one.default_factory is none)
