"""The page of the OpenAPI document: complete, without other hosts or scripts, and its commands."""

import json
import re
import shlex
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

from regard.recipes.registry import RECIPES
from regard.serve.guard import OPEN
from regard.serve.openapi.page import docs_page
from tests.serve.test_openapi import describe_run, document_of

ADDRESS = "http://127.0.0.1:8000/"


class Page(HTMLParser):
    """Ids, links and open elements of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "link"):
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src"):
                self.links.append(value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def commands(text: str) -> list[list[str]]:
    lines = [
        line for block in re.findall("<pre>(.*?)</pre>", text, re.S) for line in block.split("\n")
    ]
    return [shlex.split(unescape(line)) for line in lines if line.startswith("curl ")]


@pytest.mark.parametrize("recipe", RECIPES)
def test_page_has_all_parts_of_the_document(recipe: str) -> None:
    document = document_of(describe_run(recipe))
    text = docs_page(document, ADDRESS)
    page = Page(text)
    assert not page.open
    assert "script" not in page.tags
    assert len(set(page.ids)) == len(page.ids)
    for link in page.links:
        assert link in ("data:,", "/openapi.json") or link.removeprefix("#") in page.ids
    names = {f"schema-{name}" for name in document["components"]["schemas"]}
    operations = [own for methods in document["paths"].values() for own in methods.values()]
    assert set(page.ids) == names | {own["operationId"] for own in operations}
    for name in describe_run(recipe).facts["options"]:
        assert f"<code>{name}</code>" in text
    texts = re.sub("<pre>.*?</pre>", "", text, flags=re.DOTALL)
    assert "`" not in texts
    assert "&lt;code" not in texts


def test_commands_send_the_examples() -> None:
    document = document_of(
        describe_run("dates", example="3 März 'x' <2019>"), describe_run("images")
    )
    found = commands(docs_page(document, ADDRESS))
    bodies = [json.loads(words[words.index("-d") + 1]) for words in found if "-d" in words]
    assert {"run": "dates", "inputs": ["3 März 'x' <2019>"]} in bodies
    files = [words for words in found if "--data-binary" in words]
    assert ["curl", "-H", "Content-Type: image/png"] in [words[:3] for words in files]
    assert ["curl", "http://127.0.0.1:8000/v1/runs"] in found
    looks = [words[-1] for words in found if "looks" in words[-1]]
    assert looks == ["http://127.0.0.1:8000/v1/looks/6VJc0VbGzDFnrlBJ4mEfWg"]
    assert all(words[-1].startswith(ADDRESS) for words in found)


def test_commands_have_a_key_where_one_is_needed() -> None:
    found = commands(docs_page(document_of(describe_run("dates"), needs_key=True), ADDRESS))
    for words in found:
        is_open = words[-1].removeprefix(ADDRESS[:-1]) in OPEN or "/v1/looks/" in words[-1]
        assert ("Authorization: Bearer KEY" in words) != is_open


def test_names_of_runs_are_escaped() -> None:
    text = docs_page(document_of(describe_run("dates", "<b>&amp;")), ADDRESS)
    assert "<b>" not in text
    assert "&lt;b&gt;&amp;amp;" in text
