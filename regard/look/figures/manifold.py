"""Picture of an autoencoder of two numbers: data, manifold of reconstructions, energy of the plane.

    curve      y~(h) for codes h of one number, swept over the range of the data's codes; 48 dots
    contours   F(y) of every point y of the plane

Source: lectures, E.10 (trained manifold).
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.look.figures.canvas import add_axes, open_figure

STEPS = 48
"""Steps of the sweep: pi / 24 each, if the range is 2 pi."""
FINE = 32
"""Steps of the curve between two dots."""
CELLS = 96
"""Points of the grid of energies, along each axis."""
_DATA, _CURVE, _INPUT = "#5b6673", "#d55e00", "#0072b2"


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


def plane(data: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the coordinates (CELLS,) along both axes of a grid around the data."""
    low, high = data.min(0), data.max(0)
    margin = 0.25 * np.maximum(high - low, 1e-3)
    grid = np.linspace(low - margin, high + margin, CELLS, dtype=np.float32)
    return grid[:, 0], grid[:, 1]


def plot_manifold(
    manifold: Manifold,
    path: Path,
    *,
    title: str,
    inputs: NDArray[np.float32] | None = None,
    outputs: NDArray[np.float32] | None = None,
    overwrite: bool = False,
) -> None:
    """Plot data of two numbers, the manifold, and the energy.

    inputs, outputs: (inputs, 2), vectors that are marked, and their reconstructions, to which lines
                     lead.
    """
    with open_figure(path, overwrite=overwrite) as figure:
        axes = add_axes(figure, (6.4, 5.6), title)
        if manifold.energy is not None:
            # Energies grow with the square of the distance: equal steps of the root are equal
            # distances.
            root = np.sqrt(np.maximum(manifold.energy, 0))
            filled = axes.contourf(*plane(manifold.data), root, 14, cmap="Blues")
            bar = figure.colorbar(filled, ax=axes, shrink=0.8)
            bar.set_label("root of the energy F(y)", fontsize=8)
        # Circles, which reconstructions at the same place do not hide.
        style = {"markersize": 4.5, "fillstyle": "none", "markeredgewidth": 0.6}
        axes.plot(*manifold.data[:2000].T, "o", color=_DATA, label="data y", **style)
        if manifold.curve is None:
            style = {"markersize": 2, "label": "reconstructions"}
            axes.plot(*manifold.rebuilt[:2000].T, ".", color=_CURVE, **style)
        else:
            style = {"markersize": 3, "markevery": FINE, "linewidth": 1.4}
            axes.plot(*manifold.curve.T, "-o", color=_CURVE, label="y~(h), h swept", **style)
        if inputs is not None and outputs is not None:
            for ends in np.stack((inputs, outputs), 1):
                axes.plot(*ends.T, color=_INPUT, linewidth=1)
            style = {"markersize": 5, "label": "input y and its reconstruction"}
            axes.plot(*inputs.T, "D", color=_INPUT, **style)
        axes.set(xlabel="first number", ylabel="second number", aspect="equal")
        axes.legend(fontsize=8, loc="upper right")
