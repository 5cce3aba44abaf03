"""The OpenAPI document as a page (page.html) that needs no other host and no script."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, Undefined
from markupsafe import Markup, escape

_TEMPLATE = Path(__file__).with_name("page.html")
_JSON, _FORM = "application/json", "multipart/form-data"
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
    "maxLength": "characters: at most",
}


def docs_page(document: Mapping[str, Any], address: str) -> str:
    """Return the page of a document; address: of the service, for lines of curl."""
    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters |= {"type": _type, "text": _text, "examples": _examples, "json": _json}
    operations = []
    for path, methods in document["paths"].items():
        for method, own in methods.items():
            has_key = bool(own.get("security", document.get("security")))
            lines = [*_command_lines(own, address.rstrip("/") + path, has_key=has_key)]
            operations.append({**own, "name": f"{method.upper()} {path}", "lines": lines})
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(document=document, operations=operations)


def _command_lines(operation: Mapping[str, Any], url: str, *, has_key: bool) -> Iterator[str]:
    """Yield a line of curl for each example of a body, and for a file; or one without a body."""
    for parameter in operation.get("parameters", ()):
        url = url.replace("{" + parameter["name"] + "}", parameter.get("example", ""))
    key = '-H "Authorization: Bearer KEY" ' if has_key else ""
    end = key + shlex.quote(url)
    content = operation.get("requestBody", {}).get("content", {})
    for value in _examples(content.get(_JSON, {})):
        body = shlex.quote(json.dumps(value, ensure_ascii=False))
        yield f'curl -H "Content-Type: {_JSON}" -d {body} {end}'
    for kind in content:
        if kind.startswith(("image/", "audio/", "text/")):
            yield f'curl -H "Content-Type: {kind}" --data-binary @FILE {end}'
    if _FORM in content:
        yield f"curl -F inputs=@FILE {end}"
    if not content:
        yield f"curl {end}"


def _examples(content: Mapping[str, Any]) -> list[Any]:
    """Return the examples of a content."""
    named = [one["value"] for one in content.get("examples", {}).values()]
    return [content["example"]] if "example" in content else named


def _type(schema: Mapping[str, Any]) -> str:
    """Return the values that a schema allows, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return Markup('<a href="#schema-{0}">{0}</a>').format(name)
    if "anyOf" in schema:
        return Markup(" or ").join(map(_type, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(map(json.dumps, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        return Markup("list of ") + _type(schema.get("items", {}))
    if isinstance(schema.get("additionalProperties"), Mapping):
        return Markup("object of {} by name").format(_type(schema["additionalProperties"]))
    kind = schema.get("type", "any value")
    words = [kind if isinstance(kind, str) else " or ".join(kind)]
    words += [f"{text} {schema[name]:,}" for name, text in _BOUNDS.items() if name in schema]
    return ", ".join(words)


def _text(text: str | Undefined) -> Markup:
    """Return a text as HTML, with what is in backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text or ""))))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
