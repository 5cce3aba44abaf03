"""Dataclasses from untrusted JSON, validated field by field. Nothing is imported by name.

Unlike a setting (regard.settings.tree), which may be text from a command line, a value must have
its type in JSON.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from regard.settings.declare import field_kinds
from regard.settings.values import Kind

DataT = TypeVar("DataT")


def parse_dataclass(cls: type[DataT], content: object, where: str) -> DataT:
    """Return an instance of a dataclass; omitted fields have their defaults.

    where:  path of `content` in the file, for messages.
    Raises: ValueError with the path for an unknown or missing field, a value of the wrong type or
            not finite, and for values that the dataclass rejects.
    """
    if not isinstance(content, Mapping):
        raise _value_error(where, "an object", content)
    kinds = field_kinds(cls)
    if unknown := [name for name in content if name not in kinds]:
        raise ValueError(f"{where} has an unknown field {str(unknown[0])[:60]!r}")
    values = {
        name: _value(kinds[name], value, f"{where}.{name}") for name, value in content.items()
    }
    if missing := _required_fields(cls) - set(values):
        raise ValueError(f"{where} must have the field {min(missing)!r}")
    return cls(**values)


def _value(kind: Kind, value: Any, where: str) -> Any:
    if kind.optional and value is None:
        return None
    if kind.count != 1:
        return _tuple(kind, value, where)
    if kind.choices and (rule := kind.find_broken_rule(value)):
        raise _value_error(where, rule, value)
    base = kind.bases[0]
    if base is dict and kind.item is not None:
        if not isinstance(value, dict):
            raise _value_error(where, "an object", value)
        return {
            str(name): _value(kind.item, entry, f"{where}.{name}") for name, entry in value.items()
        }
    return (
        parse_dataclass(base, value, where)
        if dataclasses.is_dataclass(base)
        else _scalar(base, value, where)
    )


def _scalar(base: type, value: Any, where: str) -> Any:
    if base is float:
        # float() overflows for integers of hundreds of digits.
        if not _is_number(value) or not abs(value) < 1e300 or not math.isfinite(value):
            raise _value_error(where, "a finite number", value)
        return float(value)
    if type(value) is not base:
        raise _value_error(
            where, {str: "a string", int: "an integer", bool: "true or false"}[base], value
        )
    return value


def _tuple(kind: Kind, value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _value_error(where, "a list", value)
    if kind.count is not None and len(value) != kind.count:
        raise _value_error(where, f"{kind.count} values", value)
    item = kind.item or dataclasses.replace(kind, count=1, optional=False)
    return tuple(_value(item, entry, f"{where}[{index}]") for index, entry in enumerate(value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value_error(where: str, expected: str, got: object) -> ValueError:
    text = (
        str(got)
        if not isinstance(got, int) or got.bit_length() < 200
        else "a number of many digits"
    )
    return ValueError(
        f"{where} must be {expected}, got {text if len(text) <= 60 else f'{text[:57]}...'}"
    )


@functools.cache
def _required_fields(cls: Any) -> frozenset[str]:
    none = dataclasses.MISSING
    fields = dataclasses.fields(cls)
    return frozenset(
        field.name for field in fields if field.default is none and field.default_factory is none
    )
