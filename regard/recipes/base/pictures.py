"""Images as inputs of a model: reading, the patches that attention maps refer to, and the shape of a run's images."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.config import ImagesConfig
from regard.data.images.dataset import read_image_array
from regard.errors import UserError
from regard.look.sample import Axis, Image
from regard.models.readers.images import ImageReader
from regard.system.files import read_json

_SHAPE = "images.json"
_MOST_VALUES = 1 << 28


def to_picture(pixels: NDArray[np.uint8]) -> Image:
    """Return the picture of pixels (channels, height, width), gray or RGB."""
    return Image(pixels=pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))


def patch_axis(reads: ImageReader) -> Axis:
    """Return the axis of an image's items, with the area of each on the picture "image"."""
    axis = Axis.grid(*reads.grid, picture="image")
    # The center of the first item is half an item from the edges; the last items may extend beyond the image.
    width, height = (2 * reads.get_buffer("centers")[0].double()).tolist()
    places = []
    for number in range(len(axis)):
        row, column = divmod(number, reads.grid[1])
        left, top = column * width, row * height
        places.append((left, top, min(width, 1 - left), min(height, 1 - top)))
    return Axis(labels=axis.labels, kind=axis.kind, picture=axis.picture, places=tuple(places))


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


def save_shape(folder: Path, shape: tuple[int, int, int]) -> None:
    """Write the shape (channels, height, width) of a run's images."""
    content = {"format": "regard-images", "version": 1, "shape": list(shape)}
    (folder / _SHAPE).write_text(json.dumps(content) + "\n", encoding="utf-8")


def read_shape(folder: Path) -> tuple[int, int, int]:
    """Read the file of `save_shape`. Raises UserError naming the file."""
    path = folder / _SHAPE
    if not path.exists():
        raise UserError(f"{path} is missing: the run is not complete")
    return shape_in(path, read_json(path), of="the images")


def shape_in(path: Path, content: object, *, of: str) -> tuple[int, int, int]:
    """Return the shape (channels, height, width) stored in a JSON file of a run. Raises UserError naming the file."""
    shape = content.get("shape") if isinstance(content, dict) else None
    if not (isinstance(shape, list) and len(shape) == 3 and all(type(size) is int and size > 0 for size in shape)):
        raise UserError(f"{path}: damaged: it must hold the shape of {of}")
    if math.prod(shape) > _MOST_VALUES:
        raise UserError(f"{path}: damaged: {of} of {' x '.join(map(str, shape))} are too large")
    return shape[0], shape[1], shape[2]
