"""Resampling in blocks: the same numbers as `scipy.signal.resample_poly` of the whole sound, in bounded memory.

    y[m] = sum_k h[m down - k up] x[k]        up / down = new rate / old rate

h is a low-pass filter of 20 max(up, down) + 1 taps.

An output depends on the inputs within 10 max(up, down) / up of its place. A block is filtered with so many of its
neighbors on both sides, and begins at a multiple of `down`, where the phase of the filter is that of the first sample.
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
    """Return the samples of consecutive blocks at another rate, in blocks of about `size` samples.

    The result does not depend on `size` or on how the input is cut.
    """
    step = Fraction(new_rate, rate)
    up, down = step.numerator, step.denominator
    if up == down:
        yield from blocks
        return
    half = _HALF * max(up, down)
    window = firwin(2 * half + 1, 1 / max(up, down), window=("kaiser", 5.0))  # that of resample_poly
    around = -(-half // (up * down))  # in units of `down` samples
    units = max(_LEAST_UNITS, around, size // max(up, down))
    first, last, whole = around * up, (around + units) * up, (2 * around + units) * down
    waiting = np.zeros(around * down)
    for block in blocks:
        waiting = np.concatenate([waiting, block])
        while len(waiting) >= whole:
            yield resample_poly(waiting[:whole], up, down, window=window)[first:last]
            waiting = waiting[units * down :]
    yield resample_poly(waiting, up, down, window=window)[first:]
