"""The rules of `--device`: which tests run on a device, and that warnings do not fail them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests import conftest


class _Config:
    """Options of pytest, and the settings that conftest adds."""

    def __init__(self, **options: Any):
        self.options, self.added = options, []
        self.hook = SimpleNamespace(pytest_deselected=lambda items: None)

    def getoption(self, name: str) -> Any:
        return self.options.get(name.removeprefix("--"), False)

    def addinivalue_line(self, name: str, line: str) -> None:
        self.added.append((name, line))


PRETENDED = {"device": "pretended"}


def item(name: str, *fixtures: str, markers: tuple[str, ...] = (), **fields: Any) -> Any:
    return SimpleNamespace(
        **fields,
        nodeid=name,
        fixturenames=fixtures,
        get_closest_marker=lambda marker: marker if marker in markers else None,
    )


@pytest.mark.parametrize(
    ("options", "selected"),
    [
        ({"device": "cpu"}, ["plain", "device"]),
        ({"device": "cpu", "gpu": True}, ["plain", "device", "gpu"]),
        ({"device": "cuda"}, ["device"]),
        ({"device": "cuda", "gpu": True}, ["device", "gpu"]),
        ({"device": "cuda", "gpu": True, "slow": True}, ["device", "gpu", "slow"]),
    ],
)
def test_a_device_selects_the_tests_that_take_it(
    options: dict[str, Any], selected: list[str]
) -> None:
    items = [item("plain"), item("device", "tmp_path", "device"), item("gpu", markers=("gpu",))]
    items.append(item("slow", "gpu", markers=("slow",)))
    if options["device"] != "cpu":
        items.append(item("pretended", "device", callspec=SimpleNamespace(params=PRETENDED)))
    conftest.pytest_collection_modifyitems(_Config(**options), items)
    assert [each.nodeid for each in items] == selected


def test_files_without_device_are_not_imported_on_a_device() -> None:
    tests = Path(__file__).parent
    there, here = _Config(device="cuda"), _Config(device="cpu")
    without, with_device = tests / "test_trace.py", tests / "contracts" / "test_masks.py"
    assert conftest.pytest_ignore_collect(without, there) is True
    assert conftest.pytest_ignore_collect(with_device, there) is None
    assert conftest.pytest_ignore_collect(tests / "conftest.py", there) is None
    assert conftest.pytest_ignore_collect(without, here) is None


def test_warnings_fail_tests_on_a_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = _Config(device="cuda"), _Config(device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        conftest.pytest_configure(there)
    conftest.pytest_configure(here)
    assert (there.added, here.added) == ([("filterwarnings", "default")], [])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(pytest.UsageError, match="--device cuda needs a GPU, and there is none"):
        conftest.pytest_configure(there)
    with pytest.raises(pytest.UsageError, match="--gpu needs a GPU, and there is none"):
        conftest.pytest_configure(_Config(device="cpu", gpu=True))
