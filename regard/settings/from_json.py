"""Dataclasses from untrusted JSON, validated field by field.

Supported annotations: str, int, finite float, bool, tuples of these (of any or of a fixed length), other dataclasses,
`X | None`, and dicts of these by name. Nothing is imported by name.
"""

import dataclasses
import functools
import math
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

DataT = TypeVar("DataT")


def parse_dataclass(cls: type[DataT], content: object, where: str) -> DataT:
    """Return an instance of a dataclass; omitted fields have their defaults.

    where:  path of `content` in the file, for messages.
    Raises: ValueError with the path for an unknown or missing field, a value of the wrong type or not finite, and for
            values that the dataclass rejects.
    """
    if not isinstance(content, Mapping):
        raise _value_error(where, "an object", content)
    hints = _hints(cls)
    if unknown := [name for name in content if name not in hints]:
        raise ValueError(f"{where} has an unknown field {str(unknown[0])[:60]!r}")
    values = {name: _value(hints[name], value, f"{where}.{name}") for name, value in content.items()}
    if missing := _required_fields(cls) - set(values):
        raise ValueError(f"{where} must have the field {min(missing)!r}")
    return cls(**values)


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _value(inner[0], value, where)  # `X | None` alone
    if origin is tuple:
        return _tuple(inner, value, where)
    if origin is dict:
        if not isinstance(value, dict):
            raise _value_error(where, "an object", value)
        return {str(name): _value(inner[1], entry, f"{where}.{name}") for name, entry in value.items()}
    return parse_dataclass(hint, value, where) if dataclasses.is_dataclass(hint) else _scalar(hint, value, where)


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float:
        # float() overflows for integers of hundreds of digits.
        if not _is_number(value) or not abs(value) < 1e300 or not math.isfinite(value):
            raise _value_error(where, "a finite number", value)
        return float(value)
    if type(value) is not hint:
        raise _value_error(where, {str: "a string", int: "an integer", bool: "true or false"}[hint], value)
    return value


def _tuple(inner: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _value_error(where, "a list", value)
    if inner[-1] is Ellipsis:
        return tuple(_value(inner[0], entry, f"{where}[{index}]") for index, entry in enumerate(value))
    if len(value) != len(inner):
        raise _value_error(where, f"{len(inner)} values", value)
    pairs = enumerate(zip(inner, value, strict=True))
    return tuple(_value(hint, entry, f"{where}[{index}]") for index, (hint, entry) in pairs)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value_error(where: str, expected: str, got: object) -> ValueError:
    text = str(got) if not isinstance(got, int) or got.bit_length() < 200 else "a number of many digits"
    return ValueError(f"{where} must be {expected}, got {text if len(text) <= 60 else f'{text[:57]}...'}")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


@functools.cache
def _required_fields(cls: Any) -> frozenset[str]:
    none = dataclasses.MISSING
    fields = dataclasses.fields(cls)
    return frozenset(field.name for field in fields if field.default is none and field.default_factory is none)
