"""Samples in memory or in a temporary file: the same array."""

import numpy as np
import pytest

from regard.data import sample_store
from regard.data.sample_store import SampleStore
from regard.errors import UserError


@pytest.mark.parametrize("most", [1 << 20, 2 * 250, 0])
def test_array_is_what_was_appended_wherever_it_lies(monkeypatch, most):
    monkeypatch.setattr(sample_store, "_MOST_IN_MEMORY", most)
    sound = np.arange(-500, 500).astype(np.int16)
    store = SampleStore()
    for first in range(0, 1000, 130):
        store.append(sound[first : first + 130])
        assert len(store) == min(1000, first + 130)
    found = store.array()
    np.testing.assert_array_equal(found, sound)
    assert isinstance(found, np.memmap) == (most < 2000)


def test_a_full_disk_is_named_with_the_variable_that_helps(monkeypatch, tmp_path):
    monkeypatch.setattr(sample_store, "_MOST_IN_MEMORY", 0)
    monkeypatch.setattr(sample_store.tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(UserError, match=r"gone: 20 bytes of samples cannot be written .* TMPDIR names another folder"):
        SampleStore().append(np.zeros(10, np.int16))
