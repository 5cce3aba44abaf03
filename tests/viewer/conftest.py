"""A browser, and pages of runs with random weights.

A page must not write errors to the console, nor request anything but itself.
"""

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
)

from regard.look.capture import Capture
from regard.recipes.base.trained import TrainedRun
from tests.look.pictures import SVG
from tests.recipes.toy import toy_options
from tests.recipes.toy_clouds import SMALL as CLOUDS
from tests.recipes.toy_clouds import write_clouds
from tests.recipes.untrained import untrained

_SMALL = (
    "--model.core.width 16 --model.core.layers 2 --model.core.heads 2 --model.core.feedforward 16"
)
_RUNS = {
    "chain": "language --context 24 --model.core self-attentive --model.core.width 16 "
    "--model.core.hidden 16",
    "image": f"images {_SMALL} --patch 2",
    "boxes": f"boxes {_SMALL} --data.width 32 --data.height 24 --downsampling-layers 2 "
    "--model.num-queries 6 --threshold 0.01",
    "tracks": f"tracks {_SMALL}",
    "events": f"events {_SMALL} --data.bands 12 --channels 8 --model.num-queries 4 "
    "--threshold 0.01 --data.epoch-size 4 --data.val-size 4 --data.test-size 4",
}
"""Recipes and options of runs on data of the package, synthetic or embedded."""


class Tab:
    """A tab of the browser, for one test after the other: a new one starts slowly.

    Errors are warnings and errors of the page, and its requests of anything but itself.
    """

    def __init__(self, context: BrowserContext):
        self.page = context.new_page()
        self.page.set_default_timeout(20_000)
        self.own = ""
        self.errors: list[str] = []
        self.page.on("console", self.note_message)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self.note_request)

    def note_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def note_request(self, request: Request) -> None:
        if not request.url.startswith((self.own, "data:", "blob:", "about:")):
            self.errors.append(request.url)

    def open(self, path: Path, fragment: str) -> None:
        """Open a page, and wait until it is drawn."""
        self.own = path.resolve().as_uri()
        self.page.goto(self.own + fragment)
        self.page.wait_for_function(
            "window.regard || document.querySelector('[role=alert], iframe')"
        )
        self.page.evaluate("window.regard && window.regard.ready")

    def clear(self) -> list[str]:
        """Leave the page, and return the errors since it was opened."""
        self.page.mouse.move(0, 0)
        self.page.goto("about:blank")
        errors, self.errors = self.errors, []
        return errors


@pytest.fixture(scope="session")
def free_tabs(browser: Browser) -> Callable[..., list[Tab]]:
    """Return a function that returns the free tabs of a size and scheme, at least one."""

    @functools.cache
    def create_context(width: int, height: int, color_scheme: Any) -> BrowserContext:
        viewport: Any = {"width": width, "height": height}
        return browser.new_context(viewport=viewport, color_scheme=color_scheme)

    tabs: dict[tuple[Any, ...], list[Tab]] = {}

    def find_tabs(*look: Any) -> list[Tab]:
        free = tabs.setdefault(look, [])
        if not free:
            free.append(Tab(create_context(*look)))
        return free

    return find_tabs


@pytest.fixture
def open_page(free_tabs: Callable[..., list[Tab]]) -> Iterator[Callable[..., Page]]:
    """Return open_page(path, "#view=links", width=..., height=..., color_scheme=...)."""
    used: list[tuple[Tab, list[Tab]]] = []

    def open_tab(
        path: Path,
        fragment: str = "",
        *,
        width: int = 1280,
        height: int = 800,
        color_scheme: str = "light",
    ) -> Page:
        free = free_tabs(width, height, color_scheme)
        tab = free.pop()
        used.append((tab, free))
        tab.open(path, fragment)
        return tab.page

    yield open_tab
    errors = []
    for tab, free in used:
        errors += tab.clear()
        free.append(tab)
    assert errors == []


@pytest.fixture(scope="session")
def capture_run(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[Capture, Path]]:
    """Return a function that returns the capture and the page of a run, made once per name."""
    results: dict[str, tuple[Capture, Path]] = {}

    def look(name: str) -> tuple[Capture, Path]:
        if name not in results:
            folder = tmp_path_factory.mktemp(name)
            gradients = name in ("transformer", "recurrent")
            if gradients:
                options = toy_options(folder, core=name)
            elif name == "points":
                options = f"points {write_clouds(folder)} {CLOUDS}"
            else:
                options = _RUNS[name]
            recipe, *words = options.split()
            run = TrainedRun(*untrained(recipe, folder, *words), folder)
            capture = run.look([run.test_input(0)], gradients=gradients)
            results[name] = capture, capture.save(folder / "page.html")
        return results[name]

    return look


def tip_of(page: Page) -> dict[str, Any]:
    """Return the data of the tooltip: query, key, head, and the number as text."""
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    return json.loads(tip.evaluate("tip => JSON.stringify(tip.dataset)"))


def press(page: Page, keys: str) -> None:
    """Press keys one by one, and wait until the page is drawn after each."""
    for key in keys.split():
        page.keyboard.press(key)
        page.evaluate("window.regard.ready")


def present(page: Page) -> None:
    """Begin to present, and wait until the page is drawn."""
    page.keyboard.press("f")
    page.wait_for_function("document.documentElement.classList.contains('presenting')")
    page.evaluate("window.regard.ready")


def save_svg(page: Page) -> tuple[ElementTree.Element, list[str]]:
    """Save the view as SVG, and return its root and its texts."""
    page.keyboard.press("s")
    with page.expect_download() as download:
        page.get_by_role("button", name="SVG").click()
    root = ElementTree.parse(download.value.path()).getroot()
    return root, [element.text or "" for element in root.iter(f"{SVG}text")]


def point_at(page: Page, query: int | None, key: int | None, *, click: bool = False) -> bool:
    """Move the pointer to a pair, and return True if it is drawn."""
    position = page.evaluate("([q, k]) => window.regard.place(q, k)", [query, key])
    if position is None:
        return False
    (page.mouse.click if click else page.mouse.move)(position["x"], position["y"])
    page.evaluate("window.regard.ready")
    return True
