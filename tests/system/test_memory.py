"""Available memory."""

import pytest

from regard.errors import UserError
from regard.system.memory import available_memory


def test_available_memory_is_the_least_of_all_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    without = available_memory()
    assert without is None or without > 2**20
    monkeypatch.setenv("REGARD_MAX_MEMORY_MIB", "1")
    assert available_memory() == 2**20
    monkeypatch.setenv("REGARD_MAX_MEMORY_MIB", "many")
    with pytest.raises(UserError, match="REGARD_MAX_MEMORY_MIB must be a whole number"):
        available_memory()
