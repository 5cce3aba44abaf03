"""Data sets of labeled images: folders, lists, IDX files, and the embedded handwritten digits.

All images of a run have one size: `size`, or that of the first. Test images of another size are
resized, as inputs of predictions are.

Source: IDX, Y. LeCun's page of MNIST. Digits: E. Alpaydin and C. Kaynak, "Optical Recognition of
Handwritten Digits", UCI Machine Learning Repository, 1998, doi 10.24432/C50P49, CC BY 4.0 (the test
part).
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from regard.data.bad_rows import BadRows
from regard.data.config import ImagesConfig
from regard.data.held_out import join_files, split_data
from regard.data.images.files import ENDINGS, read_image
from regard.data.tables import as_text, is_table, locate
from regard.data.text.labels import normalize_label, read_labels
from regard.errors import UserError
from regard.system.files import list_files, one_path, read_bytes

_DIGITS = Path(__file__).parents[1] / "embedded" / "digits.npz"
_DIGIT_SPLITS = {"train": (0, 1300), "val": (1300, 1500), "test": (1500, 1797)}

Shape = tuple[int, int, int]
"""Channels, height and width."""
Row = tuple[Path | Image.Image, str, str]
"""Image or its file, its label, and the location of the reference to it."""


@dataclass(frozen=True)
class ImageDataset:
    """Images with their labels as in the files: the name of a class, several labels, or numbers."""

    pixels: NDArray[np.uint8]
    """(count, channels, height, width)"""
    labels: tuple[str, ...]
    origin: str
    locations: tuple[str, ...]
    """Location of each image: a file, or an index in a file."""
    notices: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def values(self) -> NDArray[np.uint8]:
        """The pixels, named as in other data sets."""
        return self.pixels

    def where(self, index: int) -> str:
        return self.locations[index]

    @property
    def shape(self) -> Shape:
        """(channels, height, width) of an image."""
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Row],
        path: Path,
        config: ImagesConfig,
        bad_rows: BadRows,
        shape: Shape | None = None,
        *,
        resizes: bool = False,
        normalize: Callable[[str], str] = str,
    ) -> Self:
        """Read the images of rows, whose labels are normalized; `shape` and `resizes` as in
        `read_images`."""
        arrays, labels, locations = [], [], []
        for source, label, where in rows:
            with bad_rows.catch(where):
                if isinstance(source, Path):
                    image, name = read_image(source), str(source)
                else:
                    image, name = source, where
                normal = normalize(label)
                array = to_image_array(image, config, shape, name, resizes=resizes)
                channels, height, width = array.shape
                shape = channels, height, width
                arrays.append(array)
                labels.append(normal)
                locations.append(where)
        if not arrays:
            raise UserError(f"{path}: contains no readable image. {bad_rows.describe()}")
        pixels = np.stack(arrays)
        notices = bad_rows.notices(path)
        return cls(pixels, tuple(labels), str(path), tuple(locations), notices)

    def take(self, index: Sequence[int]) -> Self:
        labels = tuple(self.labels[i] for i in index)
        locations = tuple(self.locations[i] for i in index)
        return replace(self, pixels=self.pixels[list(index)], labels=labels, locations=locations)


def read_training_images(config: ImagesConfig, *, seed: int) -> tuple[ImageDataset, ImageDataset]:
    """Read training and validation images: those of the config, a split, or the digits."""
    if config.train is None:
        return load_digits("train"), load_digits("val")
    train = read_images(config.train, config)
    if config.val is not None:
        return train, read_images(config.val, config, train.shape)
    labels = [(label,) for label in train.labels] if config.target == "class" else None
    return split_data(train, config.val_share, "images", seed=seed, labels=labels)


def read_images(
    path: str | Path | Sequence[str],
    config: ImagesConfig,
    shape: Shape | None = None,
    *,
    resizes: bool = False,
) -> ImageDataset:
    """Read the images of folders, lists or IDX files. Raises UserError naming the file.

    shape:   required shape; None if the first image determines it.
    resizes: images of another size than `shape` are resized instead of refused.
    """
    if not isinstance(path, str | Path) and len(path) > 1:
        parts: list[ImageDataset] = []
        for one in path:
            parts.append(read_images(one, config, shape, resizes=resizes))
            shape = parts[-1].shape
        return join_files(parts, pixels=np.concatenate([part.pixels for part in parts]))
    path, bad_rows, notices = one_path(path), BadRows(config.on_bad, "images"), ()
    if path.is_dir():
        files, notices = list_files(path, ENDINGS)
        files = [file for file in files if file.parent != path]
        rows = [(file, file.relative_to(path).parts[0], str(file)) for file in files]
        if not rows:
            raise UserError(f"{path}: expected a folder of images for each class.")
    elif is_table(path):
        rows = _read_list(path, config, bad_rows)
    else:
        rows = _list_idx(path)
    normalize = normalize_label if config.target == "class" else str
    images = ImageDataset.from_rows(
        rows, path, config, bad_rows, shape, resizes=resizes, normalize=normalize
    )
    return replace(images, notices=(*notices, *images.notices))


def to_image_array(
    image: Image.Image, config: ImagesConfig, shape: Shape | None, name: str, *, resizes: bool
) -> NDArray[np.uint8]:
    """Return an image as an array; `shape` and `resizes` as in `read_images`."""
    if shape:
        is_gray = shape[0] == 1
    elif config.color == "auto":
        is_gray = image.mode in ("1", "L", "LA")
    else:
        is_gray = config.color == "gray"
    converted = image.convert("L" if is_gray else "RGB")
    if shape and resizes:
        converted = converted.resize((shape[2], shape[1]), Image.Resampling.BILINEAR)
    elif config.size is not None:
        converted = converted.resize((config.size, config.size), Image.Resampling.BILINEAR)
    array = np.atleast_3d(np.array(converted, np.uint8)).transpose(2, 0, 1)
    if shape and array.shape != shape:
        sizes = f"{array.shape[2]} x {array.shape[1]} pixels, expected {shape[2]} x {shape[1]}"
        raise UserError(f"{name}: has {sizes}: set --data.size to resize all images.")
    return array


def load_digits(split: str) -> ImageDataset:
    """Load the embedded digits: 1,300 for training, 200 validation, 297 (other writers) test."""
    with np.load(_DIGITS, allow_pickle=False) as content:
        pixels, labels = content["pixels"], content["labels"]
    first, last = _DIGIT_SPLITS[split]
    pixels = np.minimum(pixels[first:last, None].astype(np.int64) * 16, 255).astype(np.uint8)
    names = tuple(str(label) for label in labels[first:last])
    locations = tuple(f"digit {i}" for i in range(first, last))
    return ImageDataset(pixels, names, f"handwritten digits, {split}", locations)


def _read_list(path: Path, config: ImagesConfig, bad_rows: BadRows) -> Iterator[Row]:
    """Yield the rows of a list; several labels or numbers are a JSON list."""
    for number, cells in read_labels(path, ("file", config.file_column), config, bad_rows):
        with bad_rows.catch(locate(path, number)):
            file, label = [as_text(cell).strip() for cell in cells]
            yield path.parent / file, label, locate(path, number)


def _list_idx(path: Path) -> Iterator[Row]:
    pixels = _read_idx(path, magic=2051, axes=3)
    beside = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    labels = _read_idx(beside, magic=2049, axes=1)
    if len(labels) != len(pixels):
        counts = f"{len(pixels):,} images, but {beside.name} has {len(labels):,} labels"
        raise UserError(f"{path} has {counts}.")
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True), start=1):
        yield Image.fromarray(image), str(label), f"{path}, image {number}"


def _read_idx(path: Path, *, magic: int, axes: int) -> NDArray[np.uint8]:
    """Read an IDX file of bytes, the format of MNIST: its magic number, sizes, and values."""
    content = read_bytes(path)
    try:
        found, *sizes = struct.unpack_from(f">{1 + axes}i", content)
        if found != magic:
            raise ValueError(f"expected magic number {magic}, got {found}")
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(sizes)
    except (struct.error, ValueError) as error:
        problem = f"not an IDX file of {axes} axes, or truncated: {error}"
        raise UserError(f"{path}: {problem}.") from error
