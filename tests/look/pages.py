"""Parsing of pages: the JSON, and the decoded chunks."""

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np


def page_of(text: str | Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the data of a page, and its encoded chunks by name."""
    content = text.read_text() if isinstance(text, Path) else text
    (page,) = re.findall(r'<script type="application/json" id="page">(.*?)</script>', content, re.S)
    pattern = (
        r'<script type="application/octet-stream" class="chunk" id="chunk-(.*?)">(.*?)</script>'
    )
    return json.loads(page), dict(re.findall(pattern, content))


def chunk(chunks: dict[str, str], name: str) -> bytes:
    return zlib.decompress(base64.b64decode(chunks[name]))


def numbers(chunks: dict[str, str], weights: dict[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    """Return the weights of a complete map."""
    assert weights["form"] == "whole"
    return np.frombuffer(chunk(chunks, weights["chunk"]), weights["dtype"]).reshape(shape)
