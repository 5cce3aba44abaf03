"""Resampling in blocks: the numbers of the whole sound, however it is cut."""

import numpy as np
import pytest
from scipy.signal import resample_poly

from regard.data.resample import resample


@pytest.mark.parametrize(
    ("rate", "new_rate"), [(48_000, 16_000), (44_100, 16_000), (8_000, 48_000), (1_001, 1_000), (1_000, 1_003), (7, 7)]
)
@pytest.mark.parametrize(("size", "cut"), [(1, 977), (5_000, 1), (70_000, 40_000), (1 << 18, 3)])
def test_blocks_give_bit_for_bit_the_numbers_of_the_whole(rate, new_rate, size, cut):
    sound = np.random.default_rng(3).uniform(-1, 1, 30_011)
    blocks = (sound[i : i + cut] for i in range(0, len(sound), cut))
    found = np.concatenate(list(resample(blocks, rate, new_rate, size=size)))
    step = np.gcd(rate, new_rate)
    np.testing.assert_array_equal(found, resample_poly(sound, new_rate // step, rate // step))


def test_blocks_are_of_the_size_that_is_asked_for():
    blocks = (np.ones(10_000) for _ in range(50))
    assert max(map(len, resample(blocks, 48_000, 16_000, size=4_000))) <= 4_000


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_short_sounds_are_as_long_as_they_should_be(count):
    (found,) = resample(iter([np.ones(count)]), 48_000, 16_000)
    assert len(found) == -(-count // 3)
