"""Kinds of values of settings, read from type annotations, and the conversion of given values.

int, float, bool, str, Path     unions of these; with a range: Annotated[int, Range(1, 1_000)]
Literal["a", "b"]               choices
KIND | None                     optional values
tuple[KIND, ...]                any number of values; tuple[KIND, KIND]: exactly two
a dataclass                     or a union of dataclasses
"""

import dataclasses
import math
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from regard.settings.ranges import Range, short_repr

_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_BASES = {
    int: ("INT", "a whole number"),
    float: ("NUMBER", "a number"),
    bool: ("BOOL", "true or false"),
    str: ("TEXT", "text"),
    Path: ("PATH", "a path"),
}
"""For each base type: its label in the help, and its name in messages."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """Values that a setting accepts."""

    bases: tuple[type, ...]
    """Types among int, float, bool, str and Path, tried in order; or dataclasses."""
    choices: tuple[int | str, ...] = ()
    """Allowed values; any value of the bases if empty."""
    optional: bool = False
    """True if None (written `none`) is allowed."""
    count: int | None = 1
    """Number of values: 1, exactly n (a tuple), or None for any number (a tuple)."""
    within: Range | None = None
    """Range of numbers; None allows any."""

    @property
    def label(self) -> str:
        """Name of the value in the help: INT, {post,pre}, TEXT ..."""
        if self.choices:
            item = "{" + ",".join(map(str, self.choices)) + "}"
        else:
            item = "|".join(_BASES[base][0] for base in self.bases)
        return f"{item} ..." if self.count is None else " ".join([item] * self.count)

    @property
    def variants(self) -> dict[str, Any]:
        """The named dataclasses of a union by name; empty for other kinds."""
        if len(self.bases) == 1 or not dataclasses.is_dataclass(self.bases[0]):
            return {}
        return {base.name: base for base in self.bases}  # pyrefly: ignore[missing-attribute]

    def convert(self, given: object) -> Any:
        """Convert text as typed, or a value of JSON or YAML, to a value of this kind. Raises
        ValueError (`must be ..., got ...`) if that is not possible."""
        if dataclasses.is_dataclass(self.bases[0]):
            if isinstance(given, str) and given in self.variants:
                return self.variants[given]()
            if not isinstance(given, self.bases):
                names = join_choices(self.variants or [self.bases[0].__name__])
                raise ValueError(f"must be {names}, got {short_repr(given)}")
            return given
        is_choice = given in self.choices  # a choice may be called none
        if self.optional and (given is None or (given in ("none", "null") and not is_choice)):
            return None
        items = given if isinstance(given, list | tuple) else [given]
        if self.count is not None and len(items) != self.count:
            number = "one value" if self.count == 1 else f"{self.count} values"
            raise ValueError(f"must be {number}, got {short_repr(given)}")
        values = tuple(self._convert_item(item) for item in items)
        return values[0] if self.count == 1 else values

    def _convert_item(self, given: object) -> Any:
        for choice in self.choices:
            if given in (choice, str(choice)) and not isinstance(given, bool):
                return choice
        if self.choices:
            raise ValueError(f"must be {join_choices(self.choices)}, got {short_repr(given)}")
        for base in self.bases:
            value = _parse(base, given)
            if value is None:
                continue
            if self.within is not None and base in (int, float) and value not in self.within:
                raise ValueError(f"must be {self.within}, got {short_repr(value)}")
            return value
        expected = join_choices([_BASES[base][1] for base in self.bases])
        raise ValueError(f"must be {expected}, got {short_repr(given)}")


def kind_of(annotation: Any) -> Kind:
    """Return the kind of values of an annotation; TypeError for one that is not supported."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in _BASES or dataclasses.is_dataclass(annotation):
        return Kind(bases=(annotation,))
    if origin is Literal:
        return Kind(bases=(type(inner[0]),), choices=inner)
    if origin is Annotated:
        within = [item for item in inner[1:] if isinstance(item, Range)]
        return dataclasses.replace(kind_of(inner[0]), within=within[0] if within else None)
    if origin is tuple:
        count = None if inner[-1] is Ellipsis else len(inner)
        return dataclasses.replace(kind_of(inner[0]), count=count)
    if origin in (Union, types.UnionType):
        kinds = [kind_of(part) for part in inner if part is not type(None)]
        bases = tuple(base for kind in kinds for base in kind.bases)
        is_optional = type(None) in inner
        if len(kinds) == 1:
            return dataclasses.replace(kinds[0], optional=is_optional)
        if all(kind.count == 1 and not kind.choices for kind in kinds):
            within = [kind.within for kind in kinds if kind.within is not None]
            return Kind(bases=bases, optional=is_optional, within=within[0] if within else None)
    raise TypeError(f"a setting cannot be annotated {annotation}")


def join_choices(names: Any) -> str:
    """Return `a, b or c`."""
    *first, last = map(str, names)
    return f"{', '.join(first)} or {last}" if first else last


def _parse(base: type, given: object) -> Any:
    """Return a value of a base type; None if that is not possible."""
    if base is bool:
        return given if isinstance(given, bool) else _BOOLEANS.get(str(given).lower())
    if base is str:
        return str(given) if isinstance(given, str | Path) else None
    accepted = {int: int | str, float: int | float | str, Path: str | Path}[base]
    if isinstance(given, bool) or not isinstance(given, accepted) or given == "":
        return None
    try:
        value = base(given)
    except (ValueError, OverflowError):
        return None
    return None if isinstance(value, float) and math.isnan(value) else value
