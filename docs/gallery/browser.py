"""Headless Chromium: $CHROMIUM, the system's, or the one that `playwright install chromium` brings."""

import os
import shutil

from playwright.sync_api import Browser, Playwright

__all__ = ["launched"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Root needs --no-sandbox; the rest keeps it from asking for anything by itself.
_QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def launched(playwright: Playwright) -> Browser:
    """A browser that whoever asks for it closes."""
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    return playwright.chromium.launch(executable_path=path, args=_QUIET)
