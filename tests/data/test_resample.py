"""Block-wise resampling equals resampling of the whole sound, for every size of blocks."""

import numpy as np
import pytest
from scipy.signal import resample_poly

from regard.data.sound.resample import resample


@pytest.mark.parametrize(
    ("rate", "new_rate"),
    [(48_000, 16_000), (44_100, 16_000), (8_000, 48_000), (1_001, 1_000), (1_000, 1_003), (7, 7)],
)
@pytest.mark.parametrize(("size", "cut"), [(1, 977), (5_000, 1), (70_000, 40_000), (1 << 18, 3)])
def test_blocks_equal_the_whole_bit_for_bit(rate, new_rate, size, cut):
    sound = np.random.default_rng(3).uniform(-1, 1, 30_011)
    blocks = (sound[i : i + cut] for i in range(0, len(sound), cut))
    resampled = np.concatenate(list(resample(blocks, rate, new_rate, size=size)))
    step = np.gcd(rate, new_rate)
    np.testing.assert_array_equal(resampled, resample_poly(sound, new_rate // step, rate // step))


def test_blocks_have_the_requested_size():
    blocks = (np.ones(10_000) for _ in range(50))
    assert max(map(len, resample(blocks, 48_000, 16_000, size=4_000))) <= 4_000


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_short_sounds_have_the_expected_length(count):
    (resampled,) = resample(iter([np.ones(count)]), 48_000, 16_000)
    assert len(resampled) == -(-count // 3)
