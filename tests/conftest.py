"""Options and fixtures of all tests: fixed seeds, the device, and opt-in slow and GPU tests."""

import gc
import os
import random
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.devices.pretended import pretended_cuda
from tests.shapes import (
    without_checks,
)  # jaxtyping finds its checker only in a module that is loaded already

LONGEST = (
    "tests/contracts/test_transforms.py",
    "tests/viewer/test_views.py",
    "tests/exchange/test_page.py",
    "tests/devices/test_recipes.py",
    "tests/test_tour.py",
    "tests/lab/test_claims.py",
    "tests/devices/test_models.py",
    "tests/recipes/test_draw.py",
    "tests/training/test_distribution.py",
    "tests/contracts/test_cores.py",
    "tests/contracts/test_grid.py",
)
"""Files that begin first, so that no process ends with a long one."""

WITHOUT_CHECKS = (
    "bench",
    "campaigns",
    "cli",
    "devices",
    "docs",
    "engines",
    "exchange",
    "lab",
    "lectures/test_transformer.py",
    "look/test_capture.py",
    "look/test_capture_chain.py",
    "look/test_capture_text.py",
    "look/test_teacher.py",
    "look/test_walk_figure.py",
    "recipes",
    "serve",
    "training/test_loop.py",
    "training/test_partial.py",
    "viewer",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes")
    parser.addoption(
        "--gpu", action="store_true", help="also run the tests that need an accelerator"
    )
    parser.addoption(
        "--peers",
        action="store_true",
        help="also run the tests that need the packages of the extra `peers`",
    )
    parser.addoption(
        "--device",
        default="cpu",
        help="where the tests that take the `device` fixture compute; with another one than cpu, "
        "only these tests run",
    )


def takes_device(item: pytest.Item) -> bool:
    """Return True if a test computes on the device of `--device`, not on the pretended one."""
    callspec = getattr(item, "callspec", None)
    if callspec is not None and callspec.params.get("device") == "pretended":
        return False
    is_marked = item.get_closest_marker("gpu") is not None
    return is_marked or not {"device", "gpu"}.isdisjoint(getattr(item, "fixturenames", ()))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With a device, do not import files whose tests take none: they may need other packages."""
    if config.getoption("--device") == "cpu" or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    return None if "device" in text or "gpu" in text else True


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # modules and tests stay: looking for garbage among them takes seconds
    # A machine with a device has its own versions of torch and Python, whose warnings are not ours.
    device = config.getoption("--device")
    if device != "cpu":
        config.addinivalue_line("filterwarnings", "default")
    needs_gpu = f"--device {device}" if device.startswith("cuda") else "--gpu"
    has_gpu = torch.cuda.is_available()
    if (device.startswith("cuda") or config.getoption("--gpu")) and not has_gpu:
        raise pytest.UsageError(f"{needs_gpu} needs a GPU, and there is none")
    os.fsync = lambda handle: None  # no test cuts the power, and thousands would wait for the disk
    # A fixed number of threads: sums are split the same way, so results repeat bit for bit.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    # The same examples every time, and no limit on the time of one: a busy machine must not fail a
    # test.
    # Without the constants of the modules that are loaded: finding them takes seconds.
    providers._get_local_constants = providers.Constants
    settings.register_profile("regard", deadline=None, derandomize=True)
    settings.load_profile("regard")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    has_device = config.getoption("--device") != "cpu"
    disabled = [name for name in ("slow", "gpu", "peers") if not config.getoption(f"--{name}")]
    selected, deselected = [], []
    for item in items:
        is_disabled = any(item.get_closest_marker(name) for name in disabled)
        runs = not is_disabled and (takes_device(item) or not has_device)
        (selected if runs else deselected).append(item)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
    # A sort keeps the order of the others, and of the tests within a file.
    order = {name: place for place, name in enumerate(LONGEST)}
    items[:] = sorted(selected, key=lambda item: order.get(item.nodeid.split("::")[0], len(order)))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # extensions report what is not collected at the end


@pytest.fixture(autouse=True)
def seeds() -> None:
    random.seed(1)
    np.random.seed(1)  # the libraries under test draw from the global generators
    # torch.manual_seed formats a stack trace for each missing device, 3 ms per test.
    torch.default_generator.manual_seed(1)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(1)


@pytest.fixture(params=["given", "pretended"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Return the device of the option, then the pretended one (tests.devices.pretended)."""
    if request.param == "given":
        yield torch.device(request.config.getoption("--device"))
        return
    with pretended_cuda():
        yield torch.device("cuda", 0)


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Return the device of the option, or the pretended one in place of a CPU."""
    given = torch.device(request.config.getoption("--device"))
    with pretended_cuda() if given.type == "cpu" else nullcontext():
        yield torch.device("cuda", 0) if given.type == "cpu" else given


@pytest.fixture
def no_shape_checks() -> Iterator[None]:
    """Disable shape checks, as at run time, for tests of the package's own errors about shapes."""
    with without_checks():
        yield


@pytest.fixture(scope="module", autouse=True)
def checks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Disable shape checks in the folders and files of `WITHOUT_CHECKS`.

    A check takes longer than the checked call, and these folders decode and train for thousands of
    steps, with parts whose shapes are checked by their own tests and those of contracts, models and
    look.
    """
    path = request.path.relative_to(Path(__file__).parent)
    is_named = not {path.parts[0], path.as_posix()}.isdisjoint(WITHOUT_CHECKS)
    with without_checks() if is_named else nullcontext():
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium: one for all files, as a process may start Playwright once."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    from docs.gallery.browser import launch_browser  # noqa: PLC0415

    with sync_playwright() as playwright:
        browser = launch_browser(playwright)
        yield browser
        browser.close()
