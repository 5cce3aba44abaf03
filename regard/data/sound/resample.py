"""Block-wise resampling, equal to `scipy.signal.resample_poly` of the whole sound, in bounded
memory.

    y[m] = sum_k h[m down - k up] x[k]        up / down = new rate / old rate

h is a low-pass filter of 20 max(up, down) + 1 taps.

An output depends on the inputs within a distance of 10 max(up, down) / up. A block is filtered with
that many of its neighbors on both sides, and begins at a multiple of `down`, where the phase of the
filter is that of the first sample.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.signal import firwin, resample_poly

_HALF = 10
_LEAST_UNITS = 4


def resample(
    blocks: Iterable[NDArray[np.float64]], rate: int, new_rate: int, *, size: int = 1 << 18
) -> Iterator[NDArray[np.float64]]:
    """Resample consecutive blocks to another rate, and yield blocks of about `size` samples.

    The result does not depend on `size` or on the sizes of the input blocks.
    """
    step = Fraction(new_rate, rate)
    up, down = step.numerator, step.denominator
    if up == down:
        yield from blocks
        return
    half = _HALF * max(up, down)
    window = firwin(2 * half + 1, 1 / max(up, down), window=("kaiser", 5.0))  # as in resample_poly
    around = -(-half // (up * down))  # in units of `down` samples
    units = max(_LEAST_UNITS, around, size // max(up, down))
    first, last, length = around * up, (around + units) * up, (2 * around + units) * down
    buffer = np.zeros(around * down)
    for block in blocks:
        buffer = np.concatenate([buffer, block])
        while len(buffer) >= length:
            yield resample_poly(buffer[:length], up, down, window=window)[first:last]
            buffer = buffer[units * down :]
    yield resample_poly(buffer, up, down, window=window)[first:]
