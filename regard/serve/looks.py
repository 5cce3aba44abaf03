"""Looks: attention recorded for requests, as pages with an address."""

import secrets
from collections.abc import Sequence
from typing import Any

from regard.recipes.base.trained import TrainedRun


class Looks:
    """Store of pages by id."""

    def __init__(self) -> None:
        self._pages: dict[str, str] = {}

    def compute(
        self, trained: TrainedRun, inputs: Sequence[Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the address of the page of inputs, and the rows of attention."""
        capture = trained.look(inputs, **options)
        key = secrets.token_urlsafe(16)
        self._pages[key] = capture._repr_html_()
        return {"page": f"/v1/looks/{key}", "rows": []}

    def page(self, key: str) -> str | None:
        """Return a page, or None if there is none."""
        return self._pages.get(key)


def page_text() -> str:
    """Return the page at /."""
    return ""
