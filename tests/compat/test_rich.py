"""Import of rich."""

import importlib
import random
import sys

import pytest


def test_import_of_rich_keeps_the_random_numbers_of_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == "rich" or name == "regard.compat.rich":
            monkeypatch.delitem(sys.modules, name)
    random.seed(5)
    state = random.getstate()
    importlib.import_module("regard.compat.rich")
    assert random.getstate() == state
