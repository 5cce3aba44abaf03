"""A real browser, and pages of runs that were trained for these tests.

Whatever a page does here, it may not write an error to the console, nor ask for anything but itself.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from docs.gallery.browser import launch_browser
from regard.cli.main import main
from regard.look.capture import Capture
from regard.recipes.load import load
from tests.recipes.toy import toy_arguments

_SHORT = "--train.steps 40 --train.warmup 5 --train.lr 5e-3 --train.validate-every 40 --train.tensorboard false"
_SMALL = "--model.core.width 16 --model.core.layers 2 --model.core.heads 2 --model.core.feedforward 16"

_RUNS = {
    "chain": (
        f"train language {_SHORT} --train.steps 10 --train.validate-every 10 --context 24 --model.core self-attentive "
        "--model.core.width 16 --model.core.hidden 16 --batch 8"
    ),
    "image": f"train images {_SHORT} {_SMALL} --patch 2 --augment none --batch 16",
    "boxes": (
        f"train boxes {_SHORT} {_SMALL} --data.width 32 --data.height 24 --downsampling-layers 2 --model.num-queries 6 "
        "--batch 8 "
        "--threshold 0.01"
    ),
    "tracks": f"train tracks {_SHORT} {_SMALL} --batch 32",
    "events": (
        f"train events {_SHORT} {_SMALL} --data.bands 12 --channels 8 --model.num-queries 4 --batch 8 --threshold 0.01 "
        "--data.epoch-size 40 --data.val-size 8 --data.test-size 4"
    ),
}
"""Trained on data that comes with the package, made-up or embedded."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium."""
    with sync_playwright() as playwright:
        browser = launch_browser(playwright)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a page: opened(path, "#view=links", width=..., height=..., color_scheme=...)."""
    pages, wrong = [], []

    def open_page(path: Path, fragment: str = "", *, width: int = 1280, height: int = 800, **context: Any) -> Page:
        page = browser.new_page(viewport={"width": width, "height": height}, **context)
        page.set_default_timeout(20_000)
        pages.append(page)
        page.on("console", lambda message: message.type in ("error", "warning") and wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        own = path.resolve().as_uri()
        # Chromium asks for the page itself; everything else would be a request off the page.
        page.on(
            "request", lambda made: made.url.startswith((own, "data:", "blob:", "about:")) or wrong.append(made.url)
        )
        page.goto(own + fragment)
        page.wait_for_function("window.regard || document.querySelector('[role=alert], iframe')")
        page.evaluate("window.regard && window.regard.ready")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert wrong == []


@pytest.fixture(scope="session")
def looked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Capture, Path]]:
    """The capture of a run of this kind, trained when it is first asked for, and its page."""
    made: dict[str, tuple[Capture, Path]] = {}

    def look(name: str) -> tuple[Capture, Path]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            if name in ("transformer", "recurrent"):
                words = ["train", *toy_arguments(folder, core=name)]
            else:
                words = [*_RUNS[name].split(), "--run", str(folder / "run")]
            assert main(words) == 0
            run = load(folder / "run")
            gradients = name in ("transformer", "recurrent")
            capture = run.look([run.test_input(0)], gradients=gradients)
            made[name] = capture, capture.save(folder / "page.html")
        return made[name]

    return look


def tip_of(page: Page) -> dict[str, Any]:
    """What the pointer is told: the entries it is at, the head, and the number as it is written."""
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    return json.loads(tip.evaluate("tip => JSON.stringify(tip.dataset)"))
