"""Pictures for those who look on: the pixels that a model read, and where on them its items lie.

place of the item at row i, column j        [j s / width, i s / height, s / width, s / height], cut at the edge
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.config import ImagesConfig
from regard.data.images import read_one
from regard.errors import UserError
from regard.look.scene import Axis, Image
from regard.models.reads.images import ImageReader


def shown(pixels: NDArray[np.uint8]) -> Image:
    """Pixels (channels, height, width), gray or of three colors."""
    return Image(pixels=pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))


def patches(reads: ImageReader) -> Axis:
    """The items of images, each where its pixels are, on the picture "image"."""
    axis = Axis.grid(*reads.grid, on="image")
    # The middle of the first item lies half an item from the edges: the last ones may reach beyond the others.
    width, height = (2 * reads.get_buffer("centers")[0].double()).tolist()
    places = []
    for number in range(len(axis)):
        row, column = divmod(number, reads.grid[1])
        left, top = column * width, row * height
        places.append((left, top, min(width, 1 - left), min(height, 1 - top)))
    return Axis(labels=axis.labels, what=axis.what, on=axis.on, places=tuple(places))


def pixels_of(one: Any, number: int, data: ImagesConfig, shape: Sequence[int]) -> NDArray[np.uint8]:
    """An input of a run that reads images of this shape: (channels, height, width) of bytes.

    one:    an image file, or the bytes themselves.
    Raises: UserError naming the input if it is neither, or of another shape.
    """
    channels, height, width = shape
    if isinstance(one, np.ndarray):
        if one.dtype != np.uint8 or one.shape != (channels, height, width):
            raise UserError(
                f"input {number}: pixels must be bytes (uint8) of (channels, height, width) = "
                f"{(channels, height, width)}, but are {one.dtype} of {one.shape}"
            )
        return one.copy()  # torch takes no array that cannot be written
    if not isinstance(one, str | Path) or not Path(one).is_file():
        name = one if isinstance(one, str | Path) else type(one).__name__
        raise UserError(f"input {number}: {name} is no file; give names of image files, or arrays of bytes")
    return read_one(Path(one), data, (channels, height, width))
