"""JSON schemas of kinds of settings, and of types of answers. (no torch)"""

from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

from regard.settings.tree import field_docs
from regard.settings.values import Kind, kind_of

Schema = dict[str, Any]

REFERENCE = "#/components/schemas/"
"""Where a schema refers to another one: the place of all of them in an OpenAPI document."""
_NAMES = {int: "integer", float: "number", bool: "boolean", str: "string"}


def type_schemas(kind: type[Any]) -> dict[str, Schema]:
    """Return the schema of a TypedDict or NamedTuple, and by name those of the types that it names.

    The schema of another type is that of any object.
    """
    if not _is_named(kind):
        return {"AnyObject": {"type": "object", "properties": {}, "required": []}}
    found: dict[str, Schema] = {}
    waiting = [kind]
    while waiting:
        own = waiting.pop()
        hints, docs = get_type_hints(own, include_extras=True), field_docs(own)
        required, properties = getattr(own, "__required_keys__", hints), {}
        for name, hint in hints.items():
            is_optional = get_origin(hint) is NotRequired
            schema = _type_schema(get_args(hint)[0] if is_optional else hint, waiting)
            properties[name] = schema | ({"description": docs[name]} if name in docs else {})
        found[own.__name__] = {
            "type": "object",
            "description": own.__doc__,
            "properties": properties,
            "required": [name for name in hints if name in required],
            "additionalProperties": False,
        }
    return found


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


def _is_named(hint: Any) -> bool:
    """Return True for a TypedDict or a NamedTuple, an object of JSON."""
    return is_typeddict(hint) or hasattr(hint, "_fields")


def _type_schema(hint: Any, named: list[type[Any]]) -> Schema:
    """Return the schema of an annotation, and add the types that it names to a list."""
    if _is_named(hint):
        named.append(hint)
        return {"$ref": f"{REFERENCE}{hint.__name__}"}
    if get_origin(hint) is list:
        return {"type": "array", "items": _type_schema(get_args(hint)[0], named)}
    if get_origin(hint) is dict:
        return {"type": "object", "additionalProperties": _type_schema(get_args(hint)[1], named)}
    return kind_schema(kind_of(hint))
