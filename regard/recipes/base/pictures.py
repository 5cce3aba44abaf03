"""Images as data and inputs: splits, pixels, patches of attention maps, shape of a run's images."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image as PillowImage
from PIL.Image import fromarray

from regard.data.artifact import Artifact
from regard.data.config import ImagesConfig
from regard.data.images.dataset import (
    ImageDataset,
    load_digits,
    read_images,
    read_training_images,
    to_image_array,
)
from regard.data.images.files import decode_image, prepare_image
from regard.errors import UserError
from regard.look.sample import Axis, Image
from regard.models.readers.images import ImageReader
from regard.recipes.base.recipe import Dataset, File, View

_CHANNELS = (1, 3, 4)


def to_picture(pixels: NDArray[np.uint8]) -> Image:
    """Return the picture of pixels (channels, height, width), gray or RGB."""
    return Image(pixels=pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))


def patch_axis(reader: ImageReader) -> Axis:
    """Return the axis of an image's items, with the area of each on the picture "image"."""
    # The center of the first item is half an item from the edges; the last may extend beyond them.
    width, height = (2 * reader.centers[0]).tolist()
    places = []
    for row in range(reader.grid[0]):
        for column in range(reader.grid[1]):
            left, top = column * width, row * height
            places.append((left, top, min(width, 1 - left), min(height, 1 - top)))
    return replace(Axis.grid(*reader.grid, picture="image"), places=tuple(places))


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
        kind = type(given).__name__
        raise UserError(f"{where}: expected an image file, a Pillow image or an array, got {kind}")
    array = given[:, :, None] if given.ndim == 2 else given
    if array.ndim == 3 and array.shape[2] not in _CHANNELS and array.shape[0] in (1, 3):
        array = array.transpose(1, 2, 0)
    is_image = array.ndim == 3 and array.shape[2] in _CHANNELS and array.size
    if given.dtype != np.uint8 or not is_image:
        expected = "uint8 of (height, width) or (height, width, 1, 3 or 4 channels)"
        raise UserError(f"{where}: expected {expected}, got {given.dtype} of {given.shape}")
    pixels = array[:, :, 0] if array.shape[2] == 1 else array
    return prepare_image(fromarray(np.ascontiguousarray(pixels)), where)


class ImageSplits:
    """Images of the splits of a run; training and validation images are read together, once."""

    def __init__(self, data: ImagesConfig, seed: int):
        self.data, self.seed = data, seed
        self.shape: Any = None
        """Shape (channels, height, width) of all images, once it is known."""

    def load(self, split: str, data: ImagesConfig) -> Dataset[ImageDataset]:
        """Return the images of a split; `data` names those of the test."""
        if split != "test":
            images = self._training[split == "val"]
        elif data.test is None:
            images = load_digits("test")
        else:
            shape = self.shape or self._training[0].shape
            images = read_images(data.test, data, shape, resizes=True)
        # Arrays (channels, height, width) of few pixels could be read as (height, width, channels).
        inputs = View(len(images), lambda i: fromarray(to_picture(images.pixels[i]).pixels))
        names = View(len(images), images.where)
        return Dataset(images, images.origin, inputs, names=names, notes=images.notices)

    def read_pixels(self, given: Any, number: int) -> NDArray[np.uint8]:
        """Return the pixels (channels, height, width) of an input of any size (see `to_image`)."""
        where = f"input {number}"
        return to_image_array(to_image(given, where), self.data, self.shape, where, resizes=True)

    @cached_property
    def _training(self) -> tuple[ImageDataset, ImageDataset]:
        return read_training_images(self.data, seed=self.seed)


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape as text: 1 x 8 x 8."""
    return " x ".join(map(str, shape))


class InputShape(Artifact):
    """Shape of a run's images, (channels, height, width), or vectors, (size,)."""

    shape: tuple[int, ...]
    names: tuple[str, ...] = ()
    """Names of the numbers of vectors, if their file has a header."""
    file: ClassVar[str] = "shape.json"
