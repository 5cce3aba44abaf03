"""Dataclasses from untrusted JSON, validated by msgspec. Nothing is imported by name."""

from typing import TypeVar

import msgspec

DataT = TypeVar("DataT")


def parse_dataclass(cls: type[DataT], content: object, where: str) -> DataT:
    """Return an instance of a dataclass; omitted fields have their defaults.

    Raises ValueError with `where` for a missing field or a value of the wrong type.
    """
    try:
        return msgspec.convert(content, cls)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {error}") from error
