"""The attention of what was served: its numbers as JSON, and pages that are kept for a while.

A row is one read of one sample: its name, kind and layer, the labels of its queries and keys, and
its weights, head by head. The page of a look is that of `capture.save`; the page at / fetches it.
"""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError
from regard.look.capture import Capture
from regard.look.page.page import json_script, scripts_of, with_scripts
from regard.recipes.base.recipe import Example, Recipe
from regard.recipes.base.trained import TrainedRun

MAX_NUMBERS = 500_000
"""Largest number of weights of the rows of a look."""
_DIGITS = 4
_POLICY = "default-src 'none'"
"""What a page may load, which the page of the service may go beyond."""


class Looks:
    """Pages of attention by ids that cannot be guessed, up to a size, and up to an age."""

    def __init__(
        self,
        *,
        max_bytes: int = 64_000_000,
        max_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._max_bytes, self._max_seconds, self._clock = max_bytes, max_seconds, clock
        self._pages: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        """Time and elements of data of each page, the oldest first."""
        self._size = 0
        self._lock = threading.Lock()

    def compute(
        self, trained: TrainedRun, examples: Sequence[Example], recipe: Recipe[Any]
    ) -> dict[str, Any]:
        """Return the attention of the outputs of examples: the address of its page, its rows, and a
        note on which of them is None, and why."""
        read = [example for example in examples if example.rows]  # an empty input has nothing
        try:
            capture = trained.look_again(read or examples, recipe)
            title = f"{trained.run.recipe}: {trained.folder.resolve().name}"
            scripts = "".join(scripts_of([(title, capture.model, capture)])).encode()
            if len(scripts) > self._max_bytes:
                raise UserError("the page is too large: ask for less")
        except UserError as error:
            return {"page": None, "rows": None, "note": str(error)}
        look = {"page": f"/v1/looks/{self._keep(scripts)}", "rows": None, "note": ""}
        count = sum(own.weights.numel() for maps in capture for own in maps.maps)
        if count <= MAX_NUMBERS:
            return look | {"rows": rows_of(capture)}
        note = f"{count:,} weights are more than {MAX_NUMBERS:,}: they are on the page alone"
        return look | {"note": note}

    def page(self, id: str) -> str | None:
        """Return a page; None if there is none of this id, or if it is too old."""
        with self._lock:
            self._discard()
            found = self._pages.get(id)
        return None if found is None else with_scripts([found[1].decode()])

    def _keep(self, scripts: bytes) -> str:
        id = secrets.token_urlsafe()
        with self._lock:
            self._pages[id] = self._clock(), scripts
            self._size += len(scripts)
            self._discard()
        return id

    def _discard(self) -> None:
        """Remove the oldest pages until the others are few and new enough."""
        oldest = self._clock() - self._max_seconds
        while self._pages:
            time, scripts = next(iter(self._pages.values()))
            if self._size <= self._max_bytes and time >= oldest:
                return
            self._pages.popitem(last=False)
            self._size -= len(scripts)


def rows_of(capture: Capture) -> list[dict[str, Any]]:
    """Return the maps of all samples (from 1) as JSON; the weight of a masked pair is -0.0.

    An input may have several samples, such as its outputs, or none if it was skipped.
    """
    rows = []
    for number, maps in enumerate(capture, start=1):
        for own in maps.maps:
            sample = maps.sample
            row: dict[str, Any] = {"sample": number, "input": sample.input, "title": sample.title}
            for name in ("name", "kind", "layer", "direction", "measure"):
                row[name] = getattr(own, name)
            row["heads"] = list(own.heads)
            row["queries"] = list(maps.queries(own).labels)
            row["keys"] = list(maps.keys(own).labels)
            row["weights"] = _round(own.weights.double().numpy()).tolist()
            rows.append(row)
    return rows


def page_text() -> str:
    """Return the page of the service itself, which may connect to its own host."""
    text = with_scripts([json_script("serve", {})])
    return text.replace(_POLICY, f"{_POLICY}; connect-src 'self'", 1)


def _round(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers with four significant digits, and at most 22 decimals."""
    size = np.abs(numbers, where=numbers != 0, out=np.ones_like(numbers))
    decimals = np.clip(_DIGITS - 1 - np.floor(np.log10(size)), 0, 22)
    return np.round(numbers * 10**decimals) / 10**decimals
