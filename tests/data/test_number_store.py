"""Samples in memory and in a temporary file are the same array."""

import numpy as np
import pytest

from regard.data import number_store
from regard.data.number_store import NumberStore
from regard.errors import UserError


@pytest.mark.parametrize("most", [1 << 20, 2 * 250, 0])
def test_array_has_the_appended_samples_in_memory_and_in_a_file(monkeypatch, most):
    monkeypatch.setattr(number_store, "_MOST_IN_MEMORY", most)
    sound = np.arange(-500, 500).astype(np.int16)
    store = NumberStore(np.int16)
    for first in range(0, 1000, 130):
        store.append(sound[first : first + 130])
        assert len(store) == min(1000, first + 130)
    samples = store.array()
    np.testing.assert_array_equal(samples, sound)
    assert isinstance(samples, np.memmap) == (most < 2000)


def test_full_disk_is_reported_with_the_variable_to_set(monkeypatch, tmp_path):
    monkeypatch.setattr(number_store, "_MOST_IN_MEMORY", 0)
    monkeypatch.setattr(number_store.tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"gone: .*TMPDIR"):
        NumberStore(np.int16).append(np.zeros(10, np.int16))
