"""A point cloud seen from above: x to the right, y upward, darker for higher points."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SIDE = 400
_DOT = 2
_LIGHT, _DARK = np.array([205.0, 214.0, 224.0]), np.array([20.0, 40.0, 80.0])


def draw_top_view(points: NDArray[Any], extent: Sequence[float]) -> NDArray[np.uint8]:
    """Return an image (height, width, 3) of points (points, 3), its longer side 400 pixels."""
    longest = max(extent[:2])
    width, height = (max(1, round(_SIDE * side / longest)) for side in extent[:2])
    image = np.full((height, width, 3), 255, np.uint8)
    x, y, z = (points.astype(np.float64) / np.array(extent) + 0.5).clip(0, 1).T
    span = max(float(np.ptp(z)), 1e-9)
    for i in np.argsort(z, kind="stable"):  # higher points cover lower ones
        left, top = round(x[i] * (width - _DOT)), round((1 - y[i]) * (height - _DOT))
        share = (z[i] - z.min()) / span
        image[max(top, 0) : top + _DOT, max(left, 0) : left + _DOT] = _LIGHT + share * (
            _DARK - _LIGHT
        )
    return image


def place_on_top_view(
    center: NDArray[Any], sides: NDArray[Any]
) -> tuple[float, float, float, float]:
    """Return left, top, width, height of an area on the top view, as shares of the image's sides.

    center, sides: x and y, relative to the extent.
    """
    (x, y), (wide, high) = center.tolist(), sides.tolist()
    return x - wide / 2, 1 - y - high / 2, wide, high
