"""Picture of an autoencoder of two numbers: data, manifold of reconstructions, energy of the plane.

    curve      y~(h) for codes h of one number, swept over the range of the data's codes, or over
               angles from 0 to 2 pi; 48 dots
    contours   F(y) of every point y of the plane
    surface    y~(x, z) for a condition x swept over that of the data, and angles z from 0 to 2 pi

Source: lectures, E.10 (trained manifold).
"""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from regard.look.figures.canvas import add_axes, open_figure
from regard.look.manifold import FINE, STEPS, Manifold, plane

_DATA, _CURVE, _INPUT = "#5b6673", "#d55e00", "#0072b2"


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
            label = "y~(z), z swept" if manifold.has_angles else "y~(h), h swept"
            style = {"markersize": 3, "markevery": FINE, "linewidth": 1.4}
            axes.plot(*manifold.curve.T, "-o", color=_CURVE, label=label, **style)
        _mark(axes, inputs, outputs)
        axes.set(xlabel="first number", ylabel="second number", aspect="equal")
        axes.legend(fontsize=8, loc="upper right")


def plot_surface(
    data: NDArray[np.float32],
    x: NDArray[np.float32],
    surface: NDArray[np.float32],
    path: Path,
    *,
    title: str,
    inputs: NDArray[np.float32] | None = None,
    outputs: NDArray[np.float32] | None = None,
    overwrite: bool = False,
) -> None:
    """Plot data (x, y) of a condition x and two numbers y, and beside it the surface y~(x, z).

    data:    (rows, 3), x first.
    x:       (X_STEPS + 1,), the condition of each closed curve of the surface.
    surface: (X_STEPS + 1, STEPS + 1, 2), y~ for angles from 0 to 2 pi.
    inputs, outputs: (inputs, 3), rows that are marked, and their reconstructions with the same x.
    """
    with open_figure(path, overwrite=overwrite) as figure:
        figure.set_size_inches(11, 4.6)
        figure.suptitle(title, fontsize=10, y=0.92)
        panels = []
        for left, name in ((0.0, "data (x, y)"), (0.46, "manifold y~(x, z), x and z swept")):
            axes: Any = figure.add_axes((left, 0.0, 0.46, 0.9), projection="3d")
            axes.set_title(name, fontsize=10, y=0.95)
            axes.set_xlabel("x", fontsize=9)
            axes.set_ylabel("first number", fontsize=9)
            axes.set_zlabel("second number", fontsize=9)
            axes.tick_params(labelsize=8)
            for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
                axis.set_major_locator(MaxNLocator(4))
            axes.view_init(elev=20, azim=-55)
            axes.set_box_aspect((1.6, 1, 1), zoom=1.05)
            panels.append(axes)
        points, surfaces = panels
        points.scatter(*data[:2000].T, s=4, color=_DATA, depthshade=False, linewidths=0)
        # The color is the angle, on a map whose ends are the same.
        colors = colormaps["twilight"]
        faces = np.broadcast_to(colors((np.arange(STEPS) + 0.5) / STEPS), (len(x) - 1, STEPS, 4))
        grid = np.broadcast_to(x[:, None], surface.shape[:2])
        style = {"rstride": 1, "cstride": 1, "linewidth": 0.2, "edgecolor": "white", "shade": False}
        surfaces.plot_surface(grid, surface[..., 0], surface[..., 1], facecolors=faces, **style)
        bar_axes = figure.add_axes((0.95, 0.25, 0.012, 0.45))
        bar = figure.colorbar(ScalarMappable(Normalize(0, 2 * np.pi), colors), cax=bar_axes)
        bar.set_ticks([0, np.pi, 2 * np.pi], labels=["0", "\u03c0", "2\u03c0"], fontsize=8)
        bar.set_label("angle z", fontsize=9)
        surfaces.set(xlim=points.get_xlim(), ylim=points.get_ylim(), zlim=points.get_zlim())
        _mark(surfaces, inputs, outputs)
        if inputs is not None:
            surfaces.legend(fontsize=8, loc="lower left")


def _mark(axes: Any, inputs: NDArray[Any] | None, outputs: NDArray[Any] | None) -> None:
    """Mark inputs, and draw lines to their reconstructions."""
    if inputs is not None and outputs is not None:
        for ends in np.stack((inputs, outputs), 1):
            axes.plot(*ends.T, color=_INPUT, linewidth=1.2, zorder=10)
        style = {"markersize": 5, "label": "input y and its reconstruction", "zorder": 10}
        axes.plot(*inputs.T, "D", color=_INPUT, **style)
