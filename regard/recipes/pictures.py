"""Images in captures: the pixels that a model read, and the positions of its items on them.

place of the item at row i, column j        [j s / width, i s / height, s / width, s / height], cut at the edge
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.config import ImagesConfig
from regard.data.images import read_image_array
from regard.errors import UserError
from regard.look.scene import Axis, Image
from regard.models.reads.images import ImageReader


def to_picture(pixels: NDArray[np.uint8]) -> Image:
    """Return the picture of pixels (channels, height, width), gray or RGB."""
    return Image(pixels=pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))


def patch_axis(reads: ImageReader) -> Axis:
    """Return the axis of an image's items, with the area of each on the picture "image"."""
    axis = Axis.grid(*reads.grid, on="image")
    # The center of the first item is half an item from the edges; the last items may extend beyond the image.
    width, height = (2 * reads.get_buffer("centers")[0].double()).tolist()
    places = []
    for number in range(len(axis)):
        row, column = divmod(number, reads.grid[1])
        left, top = column * width, row * height
        places.append((left, top, min(width, 1 - left), min(height, 1 - top)))
    return Axis(labels=axis.labels, what=axis.what, on=axis.on, places=tuple(places))


def load_pixels(given: Any, number: int, data: ImagesConfig, shape: Sequence[int]) -> NDArray[np.uint8]:
    """Return the pixels (channels, height, width) of an input as uint8, for a run that reads images of this shape.

    given:  an image file, or an array.
    Raises: UserError naming the input if it is neither, or of another shape.
    """
    channels, height, width = shape
    if isinstance(given, np.ndarray):
        if given.dtype != np.uint8 or given.shape != (channels, height, width):
            raise UserError(
                f"input {number}: pixels must be bytes (uint8) of (channels, height, width) = "
                f"{(channels, height, width)}, got {given.dtype} of {given.shape}"
            )
        return given.copy()  # torch does not accept read-only arrays
    if not isinstance(given, str | Path) or not Path(given).is_file():
        name = given if isinstance(given, str | Path) else type(given).__name__
        raise UserError(f"input {number}: {name} is not a file; give paths of image files, or uint8 arrays")
    return read_image_array(Path(given), data, (channels, height, width))
