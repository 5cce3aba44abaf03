"""JSON schemas of answers, and of the options that a request may give. (no torch)"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

from regard.errors import UserError
from regard.recipes.base.entry import Entry
from regard.settings.ranges import short_repr
from regard.settings.tree import Setting, field_docs, settings_by_path
from regard.settings.values import Kind, kind_of

Schema = dict[str, Any]

REFERENCE = "#/components/schemas/"
OWN = ("batch_tokens",)
"""Settings of answers that belong to the service: how many inputs are computed together."""
_NAMES = {int: "integer", float: "number", bool: "boolean", str: "string"}


def answer_schemas(answer: type[Any]) -> dict[str, Schema]:
    """Return the schema of a type of answers, and those of the types that it names, by name."""
    if not is_typeddict(answer):
        return {"OwnAnswer": {"type": "object", "description": "Answer of a recipe of one's own."}}
    found: dict[str, Schema] = {}
    waiting = [answer]
    while waiting:
        own = waiting.pop()
        hints, docs = get_type_hints(own, include_extras=True), field_docs(own)
        properties = {}
        for name, hint in hints.items():
            is_optional = get_origin(hint) is NotRequired
            schema = _type_schema(get_args(hint)[0] if is_optional else hint, waiting)
            properties[name] = schema | ({"description": docs[name]} if name in docs else {})
        found[own.__name__] = {
            "type": "object",
            "description": own.__doc__,
            "properties": properties,
            "required": [name for name in hints if name in own.__required_keys__],
            "additionalProperties": False,
        }
    return found


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
    Raises: UserError with the name, what was expected and what was given.
    """
    kind, items = setting.kind, given if isinstance(given, list) else [given]
    has_text = str not in kind.bases and any(isinstance(item, str) for item in items)
    is_list = isinstance(given, list)
    if not is_text and (has_text or is_list != (kind.count != 1)):
        expected = "true or false" if bool in kind.bases else "a number"
        expected = "text" if str in kind.bases else expected
        expected = expected if kind.count == 1 else f"a list: {expected}"
        raise UserError(f"{name} must be {expected}, got {short_repr(given)}")
    try:
        return kind.convert(given)
    except ValueError as error:
        raise UserError(f"{name} {error}") from error


def kind_schema(kind: Kind) -> Schema:
    """Return the schema of the values of a kind, as JSON has them."""
    types = [_NAMES[base] for base in kind.bases]
    schema: Schema = {"type": types[0] if len(types) == 1 else types}
    if kind.choices:
        schema["enum"] = [*kind.choices]
    if kind.within is not None:
        below, above = kind.within.is_open_below, kind.within.is_open_above
        schema["exclusiveMinimum" if below else "minimum"] = kind.within.least
        schema["exclusiveMaximum" if above else "maximum"] = kind.within.most
    if kind.count != 1:
        sizes = {} if kind.count is None else {"minItems": kind.count, "maxItems": kind.count}
        schema = {"type": "array", "items": schema} | sizes
    return {"anyOf": [schema, {"type": "null"}]} if kind.optional else schema


def _type_schema(hint: Any, named: list[type[Any]]) -> Schema:
    """Return the schema of an annotation, and add the types that it names to a list."""
    if is_typeddict(hint):
        named.append(hint)
        return {"$ref": f"{REFERENCE}{hint.__name__}"}
    if get_origin(hint) is list:
        return {"type": "array", "items": _type_schema(get_args(hint)[0], named)}
    if get_origin(hint) is dict:
        return {"type": "object", "additionalProperties": _type_schema(get_args(hint)[1], named)}
    return kind_schema(kind_of(hint))
