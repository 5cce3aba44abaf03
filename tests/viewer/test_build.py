"""The committed page is built from the sources, and invalid pages show an error."""

import hashlib
import re
from pathlib import Path

import pytest

from tests.viewer.bad import BAD, page_with

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "regard" / "look" / "page" / "page.html"


def test_the_page_was_built_from_these_sources():
    """`make viewer` builds it."""
    viewer = ROOT / "viewer"
    files = [
        viewer / "index.html",
        viewer / "style.css",
        *(path for path in (viewer / "src").rglob("*") if path.is_file()),
    ]
    digest = hashlib.sha256()
    for name in sorted(path.relative_to(ROOT).as_posix() for path in files):
        digest.update(name.encode() + b"\0" + (ROOT / name).read_bytes() + b"\0")
    (stated,) = re.findall(
        r"<!-- built from sha256:([0-9a-f]+) -->", PAGE.read_text(encoding="utf-8")
    )
    assert stated == digest.hexdigest(), (
        "regard/look/page/page.html is not built from these sources: run make viewer"
    )


@pytest.mark.parametrize("name", BAD)
def test_an_invalid_page_shows_an_error(name, open_page, tmp_path):
    content, message = BAD[name]
    path = tmp_path / "page.html"
    path.write_text(page_with(PAGE.read_text(encoding="utf-8"), content), encoding="utf-8")
    page = open_page(path)
    alert = page.locator("[role=alert]").first
    alert.wait_for()
    assert re.search(message, alert.inner_text()), alert.inner_text()
