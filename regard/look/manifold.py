"""Content of the picture of an autoencoder of two numbers, and its grid and steps."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

STEPS = 48
"""Steps of the sweep: pi / 24 each, if the range is 2 pi."""
X_STEPS = 50
"""Steps of the sweep of a condition x: 1 / 50 each, if the range is 1."""
FINE = 32
"""Steps of the curve between two dots."""
CELLS = 96
"""Points of the grid of energies, along each axis."""


class Manifold(NamedTuple):
    """Content of the picture."""

    data: NDArray[np.float32]
    """(rows, 2)"""
    curve: NDArray[np.float32] | None
    """(STEPS * FINE + 1, 2), reconstructions of swept codes; None for codes of several numbers."""
    rebuilt: NDArray[np.float32]
    """(rows, 2), reconstructions of the data."""
    energy: NDArray[np.float32] | None
    """(CELLS, CELLS), energy of `plane(data)`; None if the model has no energy of one input."""
    has_angles: bool = False
    """True if the swept codes are angles z."""


def plane(data: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the coordinates (CELLS,) along both axes of a grid around the data."""
    low, high = data.min(0), data.max(0)
    margin = 0.25 * np.maximum(high - low, 1e-3)
    grid = np.linspace(low - margin, high + margin, CELLS, dtype=np.float32)
    return grid[:, 0], grid[:, 1]
