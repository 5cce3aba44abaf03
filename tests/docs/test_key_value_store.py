"""The page and the example of the key-value store run, and find what they stored."""

import contextlib
import io
import re
import runpy
from pathlib import Path

import torch

from regard.attention.memory import Memory

DOCS = Path(__file__).parents[2] / "docs"


def test_code_of_the_page_runs() -> None:
    page = (DOCS / "key-value-store.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(block, names)
    memory = names["memory"]
    assert isinstance(memory, Memory)
    assert len(memory) == 1


def test_example_finds_every_pair() -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        names = runpy.run_path(str(DOCS / "howto" / "examples" / "key_value_store.py"))
    assert names["exact"]
    assert names["none"]
    assert names["right"] > 0.99
    assert torch.equal(names["memory"][names["keys"]], names["values"])
    assert "stored 10,000 pairs" in out.getvalue()
