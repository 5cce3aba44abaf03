"""The OpenAPI document as a page (page.html) that needs no other host and no script."""

import json
import re
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, Undefined
from markupsafe import Markup, escape

_TEMPLATE = Path(__file__).with_name("page.html")


def docs_page(document: Mapping[str, Any], address: str) -> str:
    """Return the page of a document; address: of the service, for lines of curl."""
    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters |= {"text": _text, "examples": _examples, "quote": shlex.quote}
    environment.filters["json"] = partial(json.dumps, ensure_ascii=False)
    operations = []
    for path, methods in document["paths"].items():
        url = address.rstrip("/") + path
        for method, operation in methods.items():
            for own in operation.get("parameters", ()):
                url = url.replace("{" + own["name"] + "}", own.get("example", ""))
            named = {"name": f"{method.upper()} {path}", "url": url}
            security = operation.get("security", document.get("security"))
            operations.append({**operation, **named, "security": security})
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(document=document, operations=operations)


def _text(text: str | Undefined) -> Markup:
    """Return a text as HTML, with what is in backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text or ""))))


def _examples(content: Mapping[str, Any] | Undefined) -> list[Any]:
    """Return the examples of a content."""
    if "example" in content:
        return [content["example"]]
    return [one["value"] for one in content["examples"].values()] if "examples" in content else []
