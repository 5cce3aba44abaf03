"""Vectors of inputs as one array. (no torch)"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def stack_vectors(vectors: Sequence[Any]) -> NDArray[np.float32]:
    """Return vectors as the rows of an array, with NaN in place of None."""
    width = max((len(vector) for vector in vectors if vector is not None), default=0)
    empty = np.full(width, np.nan, np.float32)
    rows = [empty if vector is None else vector for vector in vectors]
    return np.stack(rows) if rows else np.zeros((0, 0), np.float32)
