"""Images as data and inputs: splits, pixels, the patches that attention maps refer to, the shape of
a run's images."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image as PillowImage
from PIL.Image import fromarray

from regard.data.config import ImagesConfig
from regard.data.images.dataset import (
    ImageDataset,
    image_shape,
    load_digits,
    read_images,
    read_training_images,
    to_image_array,
)
from regard.data.images.files import decode_image, prepare_image
from regard.data.text.sources import read_sources
from regard.errors import UserError
from regard.look.sample import Axis, Image
from regard.models.readers.images import ImageReader
from regard.recipes.base.config import OtherImages, replace_shared
from regard.recipes.base.inputs import Input
from regard.recipes.base.recipe import Examples, File, Prepared
from regard.system.files import read_json

_SHAPE = "images.json"
_CHANNELS = (1, 3, 4)
"""Numbers of channels of arrays (height, width, channels)."""
_MOST_VALUES = 1 << 28


def to_picture(pixels: NDArray[np.uint8]) -> Image:
    """Return the picture of pixels (channels, height, width), gray or RGB."""
    return Image(pixels=pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))


def patch_axis(reader: ImageReader) -> Axis:
    """Return the axis of an image's items, with the area of each on the picture "image"."""
    axis = Axis.grid(*reader.grid, picture="image")
    # The center of the first item is half an item from the edges; the last items may extend beyond
    # the image.
    width, height = (2 * reader.get_buffer("centers")[0].double()).tolist()
    places = []
    for number in range(len(axis)):
        row, column = divmod(number, reader.grid[1])
        left, top = column * width, row * height
        places.append((left, top, min(width, 1 - left), min(height, 1 - top)))
    return Axis(labels=axis.labels, kind=axis.kind, picture=axis.picture, places=tuple(places))


def prepare_pixels(
    inputs: Sequence[Any], first: int, data: ImagesConfig, shape: Sequence[int]
) -> Prepared:
    """Return the pixels (channels, height, width) of inputs as uint8, for a run that reads images
    of this shape.

    inputs: as of `to_image`, of any size.
    Raises: UserError naming the input.
    """
    prepared, (channels, height, width) = Prepared(len(inputs)), shape
    for owner, given in enumerate(inputs):
        where = f"input {first + owner}"
        image = to_image(given, where)
        prepared.add(
            owner, to_image_array(image, data, (channels, height, width), where, resizes=True)
        )
    return prepared


def list_images(path: Path, data: ImagesConfig) -> Iterator[Input]:
    """Yield the image files of a list, with or without labels."""
    for _, name, problem in read_sources(path, "file", column=data.file_column, header=data.header):
        file = str(path.parent / name.strip())
        yield Input(file, file, problem=problem)


def to_image(given: Any, where: str) -> PillowImage:
    """Return an input as an image, prepared as files are.

    given:  image file (`File`), Pillow image, or uint8 array (height, width) or (height, width,
            channels) with 1 channel, 3 (RGB) or 4 (RGBA); (1 or 3, height, width) if the width is
            none of these.
    Raises: UserError naming the input.
    """
    if isinstance(given, File):
        return decode_image(given.content, f"{where}: {given.name}")
    if isinstance(given, PillowImage):
        return prepare_image(given, where)
    if not isinstance(given, np.ndarray):
        raise UserError(
            f"{where}: expected an image file, a Pillow image or an array, got "
            f"{type(given).__name__}"
        )
    array = given
    if array.ndim == 3 and array.shape[2] not in _CHANNELS and array.shape[0] in (1, 3):
        array = array.transpose(1, 2, 0)
    is_image = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in _CHANNELS)
    if given.dtype != np.uint8 or not is_image or 0 in array.shape:
        expected = "(height, width) or (height, width, 1, 3 or 4 channels)"
        raise UserError(
            f"{where}: pixels must be bytes (uint8) of {expected}, got {given.dtype} of "
            f"{given.shape}"
        )
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return prepare_image(fromarray(np.ascontiguousarray(array)), where)


def to_color_image(given: Any, where: str) -> PillowImage:
    """Return an input (see `to_image`) as an image in RGB. Raises UserError naming the input."""
    return to_image(given, where).convert("RGB")


class ImageSplits:
    """Images of the splits of a run; training and validation images are read together, once."""

    def __init__(self, data: ImagesConfig, seed: int):
        self.data, self.seed = data, seed
        self.shape: tuple[int, int, int] | None = None
        """Shape of all images, once it is known."""

    def read(self, split: str, other: OtherImages | None) -> Examples[ImageDataset]:
        """Return the images of a split, or of a folder, a list or an IDX file."""
        data = (
            self.data
            if other is None
            else replace(replace_shared(self.data, other), test=other.test[0])
        )
        if split != "test":
            images = self._training[split == "val"]
        elif data.test is None:
            images = load_digits("test")
        else:
            shape = self.shape or image_shape(self._training[0])
            images = read_images(data.test, data, shape, resizes=True)
        left_out, on_bad = images.left_out(), data.on_bad
        return Examples(
            images,
            images.origin,
            len(images),
            # Arrays (channels, height, width) of few pixels could be read as (height, width,
            # channels).
            input=lambda i: fromarray(to_picture(images.pixels[i]).pixels),
            name=images.where,
            on_bad=on_bad,
            skipped=left_out,
        )

    @cached_property
    def _training(self) -> tuple[ImageDataset, ImageDataset]:
        return read_training_images(self.data, seed=self.seed)


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
    """Return the shape (channels, height, width) stored in a JSON file of a run. Raises UserError
    naming the file."""
    shape = content.get("shape") if isinstance(content, dict) else None
    if not (
        isinstance(shape, list)
        and len(shape) == 3
        and all(type(size) is int and size > 0 for size in shape)
    ):
        raise UserError(f"{path}: damaged: it must hold the shape of {of}")
    if math.prod(shape) > _MOST_VALUES:
        raise UserError(f"{path}: damaged: {of} of {' x '.join(map(str, shape))} are too large")
    return shape[0], shape[1], shape[2]
