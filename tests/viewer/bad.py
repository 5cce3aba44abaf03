"""Invalid pages, and the error messages that they must show."""

import base64
import copy
import json
import zlib
from typing import Any

import numpy as np

_READ = {
    "name": "a.read",
    "kind": "other",
    "layer": 1,
    "direction": "",
    "measure": "weight",
    "queries": "q",
    "keys": "k",
    "heads": ["head 1"],
    "facts": {},
    "summaries": {},
    "weights": {"form": "whole", "dtype": "float32", "chunk": "0"},
}
_AXIS = {"kind": "item", "labels": ["a", "b"], "picture": "", "places": []}
_SAMPLE = {
    "title": "t",
    "axes": {"q": _AXIS, "k": _AXIS},
    "reads": [_READ],
    "pictures": {},
    "steps": [],
}
_PAGE = {
    "format": "regard page",
    "version": 4,
    "captures": [{"title": "t", "model": "m", "samples": [_SAMPLE]}],
    "note": "",
}


def page_with(page: str, content: str) -> str:
    """Return the page with this content in place of its data."""
    return page.replace("<!-- data -->", content)


def _data(*path: Any, value: Any = None, chunk: str | None = None) -> str:
    page = copy.deepcopy(_PAGE)
    parent: Any = page
    for name in path[:-1]:
        parent = parent[name]
    if path:
        parent[path[-1]] = value
    if chunk is None:
        chunk = base64.b64encode(zlib.compress(np.eye(2, dtype=np.float32).tobytes())).decode()
    chunks = (
        f'<script type="application/octet-stream" class="chunk" id="chunk-0">{chunk}</script>'
        if chunk
        else ""
    )
    return f'{chunks}<script type="application/json" id="page">{json.dumps(page)}</script>'


_FIRST = ("captures", 0, "samples")
BAD = {
    "no data": ("", "contains no data"),
    "no JSON": (
        '<script type="application/json" id="page">{</script>',
        "damaged: it is not valid JSON",
    ),
    "another format": (_data("format", value="x"), "was not written by regard"),
    "another version": (_data("version", value=1), "version of the data must be 4, but is 1"),
    "no captures": (_data("captures", value=[]), "contains no captures"),
    "no samples": (_data(*_FIRST, value=[]), "has no samples"),
    "no reads": (_data(*_FIRST, 0, "reads", value=[]), "contains no reads"),
    "an axis that is missing": (
        _data(*_FIRST, 0, "axes", value={"q": _AXIS}),
        'has an unknown axis "k"',
    ),
    "no chunk": (_data(chunk=""), 'its chunk "0" is missing'),
    "a damaged chunk": (_data(chunk="AAAA"), 'its chunk "0" cannot be unpacked'),
    "a short chunk": (
        _data(chunk=base64.b64encode(zlib.compress(b"1234")).decode()),
        "has 4 bytes instead of 16",
    ),
}
