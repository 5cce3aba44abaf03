"""Options that a request may give: settings of answers within the limits of the service."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.recipes.base.entry import Entry
from regard.serve.replies import RequestError
from regard.settings.ranges import short_repr
from regard.settings.schemas import Schema, kind_schema
from regard.settings.tree import Setting, settings_by_path

OWN = ("batch_tokens",)
"""Settings of answers that belong to the service: how many inputs are computed together."""


def option_settings(entry: Entry, config: Any, limits: Mapping[str, int]) -> dict[str, Setting]:
    """Return the settings of answers that a request may change, by the last part of their paths.

    limits: largest values of numbers by name; a larger one of the run itself is allowed, too.
    """
    found = {}
    for path, setting in settings_by_path(config).items():
        name, kind = path.rpartition(".")[2], setting.kind
        is_answer = path in entry.answers or path.partition(".")[0] in entry.answers
        if not is_answer or name in OWN or Path in kind.bases:  # no file of a caller is read
            continue
        if name in limits and kind.within is not None:
            most = min(kind.within.most, max(limits[name], setting.value or 0))
            kind = dataclasses.replace(kind, within=dataclasses.replace(kind.within, most=most))
        found[name] = dataclasses.replace(setting, kind=kind)
    return found


def option_schemas(options: Mapping[str, Setting]) -> dict[str, Schema]:
    """Return the schemas of options by name, with the values of the run as defaults."""
    schemas = {}
    for name, setting in options.items():
        schemas[name] = kind_schema(setting.kind) | {"description": setting.doc}
        schemas[name]["default"] = setting.value
    return schemas


def convert_option(setting: Setting, name: str, given: object, *, is_text: bool = False) -> Any:
    """Return the value of an option of a request, checked as its schema says.

    is_text: the value is from a query or a form, where numbers are texts; in JSON they are not.
    Raises: RequestError with the name, what was expected and what was given.
    """
    kind = setting.kind
    if isinstance(given, float) and given.is_integer() and float not in kind.bases:
        given = int(given)  # in JSON, 4.0 is a whole number
    items = given if isinstance(given, list) else [given]
    has_text = str not in kind.bases and any(isinstance(item, str) for item in items)
    is_list = isinstance(given, list)
    if not is_text and (has_text or is_list != (kind.count != 1)):
        expected = "true or false" if bool in kind.bases else "a number"
        expected = "text" if str in kind.bases else expected
        expected = expected if kind.count == 1 else f"a list: {expected}"
        raise RequestError(422, f"{name} must be {expected}, got {short_repr(given)}", at=name)
    try:
        return kind.convert(given)
    except ValueError as error:
        raise RequestError(422, f"{name} {error}", at=name) from error
