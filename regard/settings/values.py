"""Kinds of values, read from type annotations, and the conversion of text and JSON to settings.

    int, float, bool, str, Path     unions of these; numbers also in a range: Annotated[int,
    Range(1, 1_000)] Literal["a", "b"]               choices
    KIND | None                     optional values
    tuple[KIND, ...]                any number of values; tuple[KIND, KIND]: exactly two
    a dataclass                     or a union of dataclasses
    dict[str, KIND]                 values by name, in JSON only

Annotations are read here alone: by options and their help, by checks of settings
(regard.settings.declare), and for JSON files (regard.settings.from_json). Nothing else can be set
from outside, and nothing is imported by name.
"""

import dataclasses
import difflib
import math
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from regard.settings.ranges import Range, short_repr

_LONGEST_NAME = 200
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """Values that a setting accepts."""

    bases: tuple[type, ...]
    """Types among int, float, bool, str and Path, tried in order; or dataclasses; or dict; or
    tuple."""
    choices: tuple[int | str, ...] = ()
    """Allowed values; any value of the bases if empty."""
    optional: bool = False
    """True if None (written `none`) is allowed."""
    count: int | None = 1
    """Number of values: 1, exactly n (a tuple), or None for any number (a tuple)."""
    within: Range | None = None
    """Range of numbers; None allows any."""
    item: "Kind | None" = None
    """Kind of the values of a dict, and of a tuple whose items are not of one of the five types."""

    @property
    def label(self) -> str:
        """Name of the value in the help: INT, {post,pre}, TEXT ..."""
        if self.choices:
            item = "{" + ",".join(str(choice) for choice in self.choices) + "}"
        else:
            item = "|".join(_BASES[base][0] for base in self.bases)
        return f"{item} ..." if self.count is None else " ".join([item] * self.count)

    def convert(self, given: object) -> Any:
        """Convert `given`, text as typed or a JSON or YAML value, to a value of this kind.

        Raises ValueError (`must be ..., got ...`) if that is not possible.
        """
        if self.optional and (
            given is None or (isinstance(given, str) and given.lower() in ("none", "null"))
        ):
            return None
        if self.count == 1:
            return self._convert_item(given)
        items = list(given) if isinstance(given, list | tuple) else [given]
        if self.count is not None and len(items) != self.count:
            raise ValueError(f"must be {self.count} values, got {short_repr(given)}")
        return tuple(self._convert_item(item) for item in items)

    def find_broken_rule(self, value: object) -> str | None:
        """Return the rule that a single value breaks, of ranges, choices and booleans; None if it
        breaks none."""
        if value is None and self.optional:
            return None
        if self.choices:
            is_kept = value in self.choices and not isinstance(value, bool)
            return None if is_kept else _join_choices([str(choice) for choice in self.choices])
        if self.bases == (bool,):
            return None if isinstance(value, bool) else "true or false"
        if self.within is None or (isinstance(value, str) and str in self.bases):
            return None
        numbers = int | float if float in self.bases else int
        if isinstance(value, numbers) and not isinstance(value, bool) and value in self.within:
            return None
        is_fraction = isinstance(value, float) and float not in self.bases
        return f"a whole number {self.within}" if is_fraction else str(self.within)

    def _convert_item(self, given: object) -> Any:
        # Bytes of a command line that are not UTF-8 arrive as lone surrogates, which cannot be
        # written to a file.
        if isinstance(given, str) and any("\ud800" <= character <= "\udfff" for character in given):
            raise ValueError(f"must be text in UTF-8, got {short_repr(given)}")
        if self.choices:
            for choice in self.choices:
                if given in (choice, str(choice)) and not isinstance(given, bool):
                    return choice
            raise no_choice(given, [str(choice) for choice in self.choices])
        for base in self.bases:
            value = _BASES[base][2](given)
            if value is None:
                continue
            if self.within is not None and not isinstance(value, str) and value not in self.within:
                raise ValueError(f"must be {self.within}, got {short_repr(value)}")
            return value
        expected = _join_choices([_BASES[base][1] for base in self.bases])
        raise ValueError(f"must be {expected}, got {short_repr(given)}")


def kind_of(annotation: Any) -> Kind:
    """Return the kind of values of an annotation. Raises TypeError for annotations that are not
    supported."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        kinds = [kind_of(part) for part in inner if part is not type(None)]
        if len(kinds) == 1:
            return dataclasses.replace(kinds[0], optional=True)
        if all(kind == Kind(bases=kind.bases, within=kind.within) for kind in kinds):
            bases = tuple(base for kind in kinds for base in kind.bases)
            within = next((kind.within for kind in kinds if kind.within is not None), None)
            return Kind(bases=bases, within=within, optional=type(None) in inner)
    elif origin is Annotated:
        within = next((fact for fact in inner[1:] if isinstance(fact, Range)), None)
        return dataclasses.replace(kind_of(inner[0]), within=within)
    elif origin is Literal:
        return Kind(bases=(type(inner[0]),), choices=inner)
    elif origin is tuple:
        item, count = kind_of(inner[0]), None if inner[-1] is Ellipsis else len(inner)
        is_value = item.count == 1 and not item.optional and item.bases[0] in _BASES
        return (
            dataclasses.replace(item, count=count)
            if is_value
            else Kind(bases=(tuple,), count=count, item=item)
        )
    elif (
        annotation in _BASES
        or dataclasses.is_dataclass(annotation)
        or (origin is dict and inner[0] is str)
    ):
        return Kind(bases=(origin or annotation,), item=kind_of(inner[1]) if inner else None)
    raise TypeError(f"a setting cannot be annotated {annotation}")


def no_choice(given: object, known: list[str]) -> ValueError:
    """Return the error for a value that is none of the known ones."""
    hint = suggest(given, known) if isinstance(given, str) else ""
    return ValueError(f"must be {_join_choices(known)}, got {short_repr(given)}{hint}")


def suggest(given: str, known: Iterable[str], *, prefix: str = "") -> str:
    """Return `; did you mean A or B?` with the known names most similar to the given one, or an
    empty string."""
    if len(given) > _LONGEST_NAME:  # the comparison is quadratic in the length
        return ""
    close = difflib.get_close_matches(given, list(known), n=2, cutoff=0.6)
    ratios = [difflib.SequenceMatcher(None, given, name).ratio() for name in close]
    names = [name for name, ratio in zip(close, ratios, strict=True) if ratio > ratios[0] - 0.05]
    return f"; did you mean {' or '.join(prefix + name for name in names)}?" if names else ""


def _join_choices(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _parse_int(given: object) -> int | None:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    try:
        return int(given) if isinstance(given, str) else None
    except ValueError:
        return None


def _parse_float(given: object) -> float | None:
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return None
    if isinstance(given, int) and given.bit_length() > 1023:  # beyond all floats
        return math.inf if given > 0 else -math.inf
    try:
        value = float(given)
    except ValueError:
        return None
    return None if math.isnan(value) else value


def _parse_bool(given: object) -> bool | None:
    return (
        given
        if isinstance(given, bool)
        else _BOOLEANS.get(given.lower())
        if isinstance(given, str)
        else None
    )


def _parse_text(given: object) -> str | None:
    return given if isinstance(given, str) else None


def _parse_path(given: object) -> Path | None:
    is_name = isinstance(given, str | Path) and bool(str(given)) and "\0" not in str(given)
    return Path(given) if is_name else None


_BASES: dict[type, tuple[str, str, Callable[[object], Any]]] = {
    int: ("INT", "a whole number", _parse_int),
    float: ("NUMBER", "a number", _parse_float),
    bool: ("BOOL", "true or false", _parse_bool),
    str: ("TEXT", "text", _parse_text),
    Path: ("PATH", "a path", _parse_path),
}
"""For each base type: its label in the help, its name in messages, and its converter (returns None
on failure)."""
