"""Configurations as trees of settings, shared by command-line options, the YAML file and run.json.

A configuration is a frozen dataclass; each field is a value (regard.settings.values), another
configuration, or a union of named variants (dataclasses with a class variable `name`), one of which
is selected:

    model.core = "transformer"   and its fields   model.core.layers, model.core.width, ...

`apply_changes` builds a new configuration only through the dataclasses, so their checks hold
wherever the values come from, and nothing that a file names is imported or called.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from regard.errors import UserError
from regard.settings.declare import field_kinds
from regard.settings.ranges import short_repr
from regard.settings.values import Kind, join_choices

C = TypeVar("C")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting: dotted path, kind of value, present value and documentation."""

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
    """Docstring of the dataclass's field; of the class at the top level and for variants."""
    settings: tuple[Setting, ...]


def collect_groups(config: Any, path: str = "") -> list[Group]:
    """Return the settings by dataclass, outermost first; of unions, of the present variant."""
    docs, own, below = field_docs(type(config)), [], []
    for name, kind in field_kinds(type(config)).items():
        value, at = getattr(config, name), _join(path, name)
        if kind.variants:
            choice = Kind(bases=(str,), choices=tuple(kind.variants))
            own.append(Setting(at, choice, value.name, docs.get(name, ""), kind.variants))
        if dataclasses.is_dataclass(value):
            first, *others = collect_groups(value, at)
            purpose = "" if kind.variants else docs.get(name, "")
            below += [dataclasses.replace(first, doc=purpose or first.doc), *others]
        else:
            own.append(Setting(at, kind, value, docs.get(name, "")))
    return [Group(path, inspect.cleandoc(type(config).__doc__ or ""), tuple(own)), *below]


def settings_by_path(config: Any) -> dict[str, Setting]:
    """Return the settings of a configuration by dotted path."""
    return {setting.path: setting for group in collect_groups(config) for setting in group.settings}


def to_plain(config: Any) -> dict[str, Any]:
    """Convert a configuration to JSON types; the dict of a variant has a `name`."""
    out: dict[str, Any] = {}
    for name, kind in field_kinds(type(config)).items():
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            out[name] = ({"name": value.name} if kind.variants else {}) | to_plain(value)
        elif isinstance(value, tuple):
            out[name] = [str(item) if isinstance(item, Path) else item for item in value]
        else:
            out[name] = str(value) if isinstance(value, Path) else value
    return out


def apply_changes(
    config: C,
    changes: Mapping[str, Any],
    *,
    called: Callable[[str], str],
    complete: bool = False,
    path: str = "",
) -> C:
    """Return a copy with some values replaced, given in the form of `to_plain` or as text.

    A variant is selected by its name or by a dict with `name`; its other fields have their defaults
    if the variant changes. `called(path)` returns the name of a setting for messages. With
    `complete`, every field must be given.

    Raises UserError for an unknown or missing setting and a wrong value.
    """
    known = field_kinds(type(config))
    missing = [name for name in known if name not in changes]
    if complete and missing:
        raise UserError(f"{called(_join(path, missing[0]))} is missing")
    new: dict[str, Any] = {}
    for name, value in changes.items():
        at = _join(path, name)
        if name not in known:
            raise UserError(f"{called(at)} is not a setting")
        now, variants, given = getattr(config, name), known[name].variants, value
        if dataclasses.is_dataclass(given):
            # pyrefly: ignore[missing-attribute]
            given = ({"name": given.name} if variants else {}) | to_plain(given)
        if variants:
            given = dict(given) if isinstance(given, Mapping) else {"name": given}
            variant = given.pop("name", now.name)
            if variant not in tuple(variants):
                names = join_choices(variants)
                raise UserError(f"{called(at)} must be {names}, got {short_repr(variant)}")
            now = now if variant == now.name else variants[variant]()
        if not dataclasses.is_dataclass(now):
            try:
                new[name] = known[name].convert(given)
            except ValueError as error:
                raise UserError(f"{called(at)} {error}") from error
        elif isinstance(given, Mapping):
            new[name] = apply_changes(now, given, called=called, complete=complete, path=at)
        else:
            raise UserError(f"{called(at)} must hold settings by name, got {short_repr(given)}")
    try:
        # pyrefly: ignore[bad-specialization]
        return dataclasses.replace(config, **new) if new else config
    except ValueError as error:
        raise UserError(_name_settings(str(error), config, called, path)) from error


def find_differences(
    first: Mapping[str, Any], second: Mapping[str, Any], path: str = ""
) -> dict[str, tuple[Any, Any]]:
    """Return the values (first, second) that differ in the form of `to_plain`, by dotted path."""
    different: dict[str, tuple[Any, Any]] = {}
    for name in [*first, *(name for name in second if name not in first)]:
        a, b, at = first.get(name), second.get(name), _join(path, name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            different |= find_differences(a, b, at)
        elif a != b:
            different[at] = (a, b)
    return different


def _name_settings(text: str, config: Any, called: Callable[[str], str], path: str) -> str:
    """Return a message with the settings (first word, backticks) named as the user writes them."""
    known = settings_by_path(config)

    def rename(match: re.Match[str]) -> str:
        name = match[0].strip("`")
        return called(_join(path, name)) if name in known else match[0]

    named = re.sub(r"^[\w.]+|`[\w.]+`", rename, text)
    return f"{called(path)}: {named}" if path and named == text else named


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else str(name)


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring of each field of a class, including those of its bases."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__ == "builtins":
            continue
        for node in _parse(base.__module__):
            if isinstance(node, ast.ClassDef) and node.name == base.__name__:
                for line, after in itertools.pairwise(node.body):
                    if isinstance(line, ast.AnnAssign) and isinstance(after, ast.Expr):
                        text = ast.literal_eval(after.value)
                        docs[ast.unparse(line.target)] = " ".join(text.split())
    return docs


@functools.cache
def _parse(module: str) -> list[ast.stmt]:
    return ast.parse(inspect.getsource(sys.modules[module])).body
