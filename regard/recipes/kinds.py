"""What a setting's value may be, read from its annotation, and how text or JSON becomes such a value.

The kinds are int, float, bool, str, Path, unions of these, Literal[...], each also as `| None`, as
`tuple[kind, ...]` (any number of values) or as `tuple[kind, kind]` (exactly two), numbers also within a range:
`Annotated[int, Range(1, 1_000)]`. Nothing else can be set from outside, and nothing is imported by name.
"""

import dataclasses
import difflib
import math
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from regard.ranges import Range, shown

_LONGEST_NAME = 200
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """The values that one setting takes."""

    bases: tuple[type, ...]
    """Of int, float, bool, str and Path; the first that the given value fits is taken."""
    choices: tuple[int | str, ...] = ()
    """The only values allowed; any of the bases if empty."""
    optional: bool = False
    """Whether None (said as `none`) is allowed."""
    count: int | None = 1
    """How many values: 1, exactly n (a tuple), or None for any number (a tuple)."""
    within: Range | None = None
    """The range of numbers; without one, any."""

    @property
    def label(self) -> str:
        """How the help names a value: INT, {post,pre}, TEXT ..."""
        if self.choices:
            one = "{" + ",".join(str(choice) for choice in self.choices) + "}"
        else:
            one = "|".join(_BASES[base][0] for base in self.bases)
        return f"{one} ..." if self.count is None else " ".join([one] * self.count)

    def value(self, given: object) -> Any:
        """The value that `given` says: text as typed, or what JSON and YAML hold.

        Raises ValueError, `must be ..., but is ...`, for anything else.
        """
        if self.optional and (given is None or (isinstance(given, str) and given.lower() in ("none", "null"))):
            return None
        if self.count == 1:
            return self._one(given)
        items = list(given) if isinstance(given, list | tuple) else [given]
        if self.count is not None and len(items) != self.count:
            raise ValueError(f"must be {self.count} values, but is {shown(given)}")
        return tuple(self._one(item) for item in items)

    def _one(self, given: object) -> Any:
        # What of a command line is not UTF-8 arrives as lone surrogates, which no file can hold.
        if isinstance(given, str) and any("\ud800" <= character <= "\udfff" for character in given):
            raise ValueError(f"must be text in UTF-8, but is {shown(given)}")
        if self.choices:
            for choice in self.choices:
                if given in (choice, str(choice)) and not isinstance(given, bool):
                    return choice
            known = [str(choice) for choice in self.choices]
            hint = nearest(given, known) if isinstance(given, str) else ""
            raise ValueError(f"must be {_either(known)}, but is {shown(given)}{hint}")
        for base in self.bases:
            value = _BASES[base][2](given)
            if value is None:
                continue
            if self.within is not None and not isinstance(value, str) and value not in self.within:
                raise ValueError(f"must be {self.within}, but is {shown(value)}")
            return value
        wanted = _either([_BASES[base][1] for base in self.bases])
        raise ValueError(f"must be {wanted}, but is {shown(given)}")


def kind_of(annotation: Any) -> Kind:
    """The kind that a field's annotation stands for. Raises TypeError for one that no setting may have."""
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
        count = None if inner[-1] is Ellipsis else len(inner)
        return dataclasses.replace(kind_of(inner[0]), count=count)
    elif annotation in _BASES:
        return Kind(bases=(annotation,))
    raise TypeError(f"a setting cannot be annotated {annotation}")


def nearest(given: str, known: Iterable[str], *, prefix: str = "") -> str:
    """`; did you mean A or B?` with the known names most like the given one, or nothing."""
    if len(given) > _LONGEST_NAME:  # comparing takes time with the square of the length
        return ""
    close = difflib.get_close_matches(given, list(known), n=2, cutoff=0.6)
    likeness = [difflib.SequenceMatcher(None, given, name).ratio() for name in close]
    found = [name for name, like in zip(close, likeness, strict=True) if like > likeness[0] - 0.05]
    return f"; did you mean {' or '.join(prefix + name for name in found)}?" if found else ""


def _either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _whole(given: object) -> int | None:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    try:
        return int(given) if isinstance(given, str) else None
    except ValueError:
        return None


def _number(given: object) -> float | None:
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return None
    if isinstance(given, int) and given.bit_length() > 1023:  # beyond all floats
        return math.inf if given > 0 else -math.inf
    try:
        value = float(given)
    except ValueError:
        return None
    return None if math.isnan(value) else value


def _truth(given: object) -> bool | None:
    return given if isinstance(given, bool) else _TRUTHS.get(given.lower()) if isinstance(given, str) else None


def _text(given: object) -> str | None:
    return given if isinstance(given, str) else None


def _path(given: object) -> Path | None:
    is_name = isinstance(given, str | Path) and bool(str(given)) and "\0" not in str(given)
    return Path(given) if is_name else None


_BASES: dict[type, tuple[str, str, Callable[[object], Any]]] = {
    int: ("INT", "a whole number", _whole),
    float: ("NUMBER", "a number", _number),
    bool: ("BOOL", "true or false", _truth),
    str: ("TEXT", "text", _text),
    Path: ("PATH", "a path", _path),
}
"""Of each base type: its label in the help, its name in a message, and what reads it (None if it cannot)."""
