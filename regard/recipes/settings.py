"""Configurations as trees of settings: what the command line's options, the YAML file and run.json are.

A configuration is a frozen dataclass; each field is a value (regard.recipes.kinds), another configuration, or
a union of named variants (dataclasses with a class variable `name`), of which one is chosen:

    model.core = "transformer"   and its fields   model.core.layers, model.core.width, ...

`changed` builds a new configuration through the dataclasses alone, so every check they make holds wherever
the values come from, and nothing that a file names is imported or called.

A field that came after runs had been written carries metadata {"since": VERSION}, and its default is what runs did
before. It is written only where it has another value: so older runs are complete, and a run that does not use it
has the same settings as ever.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from regard.errors import UserError
from regard.ranges import shown
from regard.recipes.kinds import Kind, kind_of, nearest

C = TypeVar("C")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One value that can be set: its dotted path, what it takes, what it is now, and what it means."""

    path: str
    kind: Kind
    value: Any
    doc: str
    variants: Mapping[str, type] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Group:
    """The settings of one dataclass of the tree."""

    path: str
    doc: str
    """What the field that holds it says; what the class says at the top and for variants."""
    settings: tuple[Setting, ...]


def groups(config: Any, path: str = "") -> list[Group]:
    """Every setting of a configuration, by dataclass, outermost first; of a union, its present variant."""
    docs, own, below = _docs(type(config)), [], []
    for name, annotation in _fields(type(config)):
        value, at = getattr(config, name), _join(path, name)
        variants = variants_of(annotation)
        if variants:
            kind = Kind(bases=(str,), choices=tuple(variants))
            own.append(Setting(at, kind, value.name, docs.get(name, ""), variants))
        if dataclasses.is_dataclass(value):
            first, *others = groups(value, at)
            purpose = "" if variants else docs.get(name, "")
            below += [dataclasses.replace(first, doc=purpose or first.doc), *others]
        else:
            own.append(Setting(at, kind_of(annotation), value, docs.get(name, "")))
    return [Group(path, inspect.cleandoc(type(config).__doc__ or ""), tuple(own)), *below]


def plain(config: Any, *, whole: bool = False) -> dict[str, Any]:
    """The configuration for JSON: nested dicts, numbers, text, lists; a variant's dict has a `name`.

    Fields with a `since` are left out at their default, unless the whole is asked for.
    """
    out: dict[str, Any] = {}
    later = {} if whole else _later(type(config))
    for name, annotation in _fields(type(config)):
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            chosen = {"name": value.name} if variants_of(annotation) else {}
            out[name] = chosen | plain(value, whole=whole)
        elif name not in later or value != later[name]:
            out[name] = _plain_value(value)
    return out


def changed(
    config: C,
    changes: Mapping[str, Any],
    *,
    called: Callable[[str], str],
    complete: bool = False,
    path: str = "",
) -> C:
    """A copy with some values replaced, given as `plain` writes them or as text.

    A variant is chosen by its name alone or by a dict with `name`; its other fields begin at their defaults
    if it is another than before. `called(path)` is how a message names a setting. With `complete`, every
    field must be given that `plain` writes, and one that it leaves out has its default.

    Raises UserError for a name that is no setting, a wrong kind of value, one out of range, a missing field.
    """
    known = dict(_fields(type(config)))
    for name in changes:
        if name not in known:
            raise UserError(f"{called(_join(path, name))} is not a setting{nearest(str(name), known)}")
    later = _later(type(config))
    missing = [name for name in known if name not in changes and name not in later]
    if complete and missing:
        raise UserError(f"{called(_join(path, missing[0]))} is missing")
    new = dict(later) if complete else {}
    for name, value in changes.items():
        at = _join(path, name)
        below, given = _chosen(known[name], getattr(config, name), value, called(at))
        if not dataclasses.is_dataclass(below):
            new[name] = _value(kind_of(known[name]), given, called(at))
        elif isinstance(given, Mapping):
            new[name] = changed(below, given, called=called, complete=complete, path=at)
        else:
            raise UserError(f"{called(at)} must hold settings by name, but is {shown(given)}")
    try:
        return dataclasses.replace(config, **new)  # pyrefly: ignore[bad-specialization]
    except ValueError as error:
        raise UserError(f"{called(path)}: {error}" if path else str(error)) from error


def differences(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> dict[str, tuple[Any, Any]]:
    """By dotted path, the values in which two plain configurations differ: (one's, other's)."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in [*one, *(name for name in other if name not in one)]:
        mine, theirs, at = one.get(name), other.get(name), _join(path, name)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            found |= differences(mine, theirs, at)
        elif mine != theirs:
            found[at] = (mine, theirs)
    return found


def variants_of(annotation: Any) -> dict[str, type]:
    """The named dataclasses that a union annotation is made of; empty if it is no such union."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return {}
    parts = get_args(annotation)
    if not all(dataclasses.is_dataclass(part) and hasattr(part, "name") for part in parts):
        return {}
    return {part.name: part for part in parts}


def _chosen(annotation: Any, now: Any, given: Any, called: str) -> tuple[Any, Any]:
    """For a union: an instance of the variant that `given` names, and its settings. Otherwise both as is."""
    variants = variants_of(annotation)
    if not variants:
        return now, given
    settings = {"name": given} if isinstance(given, str) else given
    if not isinstance(settings, Mapping):
        raise UserError(f"{called} must be one of {', '.join(variants)}, but is {shown(given)}")
    name = _value(Kind(bases=(str,), choices=tuple(variants)), settings.get("name", now.name), called)
    inside = {key: value for key, value in settings.items() if key != "name"}
    return (now if name == now.name else variants[name]()), inside


def _value(kind: Kind, given: Any, called: str) -> Any:
    try:
        return kind.value(given)
    except ValueError as error:
        raise UserError(f"{called} {error}") from error


def _plain_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain_value(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else str(name)


@functools.cache
def _fields(cls: type) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(cls) if field.init)


@functools.cache
def _later(cls: type) -> dict[str, Any]:
    """The defaults of the fields that came after runs had been written."""
    return {field.name: field.default for field in dataclasses.fields(cls) if "since" in field.metadata}


@functools.cache
def _docs(cls: type) -> dict[str, str]:
    """The text under each field of a dataclass, its bases' included."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        docs |= _docs_by_class(base.__module__).get(base.__qualname__, {})
    return docs


@functools.cache
def _docs_by_class(module: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_field_docs(node)) for node in classes}


def _field_docs(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for line, after in itertools.pairwise(node.body):
        match line, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())
