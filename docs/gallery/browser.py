"""Headless Chromium: $CHROMIUM, the system's, or that of `playwright install chromium`."""

import os
import shutil

from playwright.sync_api import Browser, Playwright

__all__ = ["launch_browser"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Root needs --no-sandbox; the other options disable network requests of the browser itself.
_QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def launch_browser(playwright: Playwright) -> Browser:
    """Launch a browser; the caller closes it."""
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    return playwright.chromium.launch(executable_path=path, args=_QUIET)
