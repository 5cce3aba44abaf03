"""Data sets of labeled images: folders, lists, IDX files, and the embedded handwritten digits.

    FOLDER/cat/1.png                     one folder per class
    FILE.tsv, FILE.csv, FILE.jsonl       image files, relative to the list, with their labels
    train-images-idx3-ubyte(.gz)         IDX; labels in the ...labels-idx1... beside it
    (nothing)                            1,797 grayscale digits of 8 x 8

Pixels are bytes (count, channels, height, width). All images of a run have one size: `size`, or
that of the first. Test images of another size are resized, as inputs of predictions are.

Source: IDX, Y. LeCun's page of MNIST. Digits: E. Alpaydin and C. Kaynak, "Optical Recognition of
Handwritten Digits", UCI Machine Learning Repository, 1998, doi 10.24432/C50P49, CC BY 4.0 (the test
part).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from regard.data.bad_rows import BadRows
from regard.data.config import ImagesConfig
from regard.data.held_out import hold_out
from regard.data.images.files import ENDINGS, read_image
from regard.data.images.idx import MAGIC_IMAGES, MAGIC_LABELS, read_idx
from regard.data.tables import as_text, is_table, locate
from regard.data.text.labels import normalize_label, read_labels
from regard.errors import UserError

_DIGITS = Path(__file__).parents[1] / "embedded" / "digits.npz"
_DIGIT_SPLITS = {"train": (0, 1300), "val": (1300, 1500), "test": (1500, 1797)}

Shape = tuple[int, int, int]
"""Channels, height and width."""
Row = tuple[Path, str, str]
"""File of an image, its label, and the location of the reference to it."""


@dataclass(frozen=True)
class ImageDataset:
    """Images with their labels as in the files: the name of a class, several labels, or numbers."""

    pixels: NDArray[np.uint8]
    """(count, channels, height, width)"""
    labels: tuple[str, ...]
    origin: str
    locations: tuple[str, ...]
    """Location of each image: a file, or an index in a file."""
    skipped: Sequence[str] = ()
    """Reason for each file that was skipped (on_bad = skip)."""
    notices: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def values(self) -> NDArray[np.uint8]:
        """The pixels, named as in other data sets."""
        return self.pixels

    def where(self, index: int) -> str:
        """Return the location of an image, for messages."""
        return self.locations[index]

    def left_out(self) -> tuple[str, ...]:
        """Return notices about skipped and unused files, a line each."""
        if not self.skipped:
            return self.notices
        count, first = len(self.skipped), self.skipped[0]
        return *self.notices, f"{self.origin}: skipped {count:,} files; first: {first}"

    def take(self, index: Sequence[int], origin: str) -> "ImageDataset":
        """Return the data set of the given indices."""
        labels = tuple(self.labels[i] for i in index)
        locations = tuple(self.locations[i] for i in index)
        return ImageDataset(self.pixels[list(index)], labels, origin, locations)


def image_shape(images: ImageDataset) -> Shape:
    """Return (channels, height, width) of the images."""
    channels, height, width = images.pixels.shape[1:]
    return channels, height, width


def read_training_images(config: ImagesConfig, *, seed: int) -> tuple[ImageDataset, ImageDataset]:
    """Read training and validation images: those of the config, a split, or the digits."""
    if config.train is None:
        return load_digits("train"), load_digits("val")
    train = read_images(config.train, config)
    if config.val is not None:
        return train, read_images(config.val, config, image_shape(train))
    labels = [(label,) for label in train.labels] if config.target == "class" else None
    return split_validation(train, config.val_share, seed=seed, labels=labels)


def read_images(
    path: str | Path, config: ImagesConfig, shape: Shape | None = None, *, resizes: bool = False
) -> ImageDataset:
    """Read the images of a folder, a list or an IDX file.

    shape:   required shape; None if the first image determines it.
    resizes: images of another size than `shape` are resized instead of refused.
    Raises: UserError naming the file, what was expected and what was found.
    """
    path = Path(path)
    if not path.is_dir() and not is_table(path):
        return _read_idx(path, config, shape, resizes=resizes)
    bad_rows, notices = BadRows(config.on_bad, "images"), ()
    if path.is_dir():
        rows, notices = _list_folder(path)
    else:
        rows = _read_list(path, config, bad_rows)
    arrays, labels, locations = [], [], []
    for file, label, where in rows:
        with bad_rows.catch():
            name = f"{where}: {file}" if where else str(file)
            array = to_image_array(read_image(file, where), config, shape, name, resizes=resizes)
            shape = _shape_of(array)
            arrays.append(array)
            locations.append(where or str(file))
            labels.append(normalize_label(label) if config.target == "class" else label)
    if not arrays:
        raise UserError(f"{path}: contains no readable image. {bad_rows.skipped.describe()}")
    return ImageDataset(
        np.stack(arrays), tuple(labels), str(path), tuple(locations), bad_rows.skipped, notices
    )


def read_image_array(
    file: Path, config: ImagesConfig, shape: Shape | None, where: str
) -> NDArray[np.uint8]:
    """Read an image file as an array, which must have `shape` if it is given.

    where:  location of the reference to the file, for messages.
    Raises: UserError naming both.
    """
    return to_image_array(read_image(file, where), config, shape, f"{where}: {file}")


def to_image_array(
    image: Image.Image,
    config: ImagesConfig,
    shape: Shape | None,
    name: str,
    *,
    resizes: bool = False,
) -> NDArray[np.uint8]:
    """Return an image as an array, which must have `shape` if it is given.

    resizes: an image of another size is resized.
    Raises:  UserError naming the image.
    """
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
        raise UserError(
            f"{name}: has {array.shape[2]} x {array.shape[1]} pixels, the images before it "
            f"{shape[2]} x {shape[1]}: set --data.size to resize all images."
        )
    return array


def split_validation(
    images: ImageDataset,
    share: float,
    *,
    seed: int,
    labels: Sequence[Iterable[str]] | None = None,
) -> tuple[ImageDataset, ImageDataset]:
    """Hold out `share` of the images for validation; see `regard.data.held_out.hold_out`."""
    parts = hold_out(
        len(images), share, seed=seed, labels=labels, origin=images.origin, noun="images"
    )
    train = images.take(parts.train, images.origin)
    val = images.take(parts.val, images.origin)
    return replace(train, skipped=images.skipped, notices=images.notices), replace(
        val, notices=(parts.notice,)
    )


def load_digits(split: str) -> ImageDataset:
    """Load the embedded digits: 1,300 for training, 200 validation, 297 (other writers) test."""
    with np.load(_DIGITS, allow_pickle=False) as content:
        pixels, labels = content["pixels"], content["labels"]
    first, last = _DIGIT_SPLITS[split]
    pixels = np.minimum(pixels[first:last, None].astype(np.int64) * 16, 255).astype(np.uint8)
    return ImageDataset(
        pixels,
        tuple(str(label) for label in labels[first:last]),
        f"handwritten digits, {split}",
        tuple(f"digit {i}" for i in range(first, last)),
    )


def _list_folder(path: Path) -> tuple[list[Row], tuple[str, ...]]:
    """Return the images below each class folder, by class and name, and notices on other files."""
    rows: list[Row] = []
    others: list[Path] = []
    for folder in sorted(path.iterdir()):
        for file in sorted(folder.rglob("*")):
            if file.is_dir() or any(part[0] == "." for part in file.relative_to(path).parts):
                continue
            if file.suffix.lower() in ENDINGS:
                rows.append((file, folder.name, ""))
            else:
                others.append(file)
    if not rows:
        raise UserError(
            f"{path}: expected a folder for each class, with images ({', '.join(ENDINGS)})."
        )
    if others:
        return rows, (f"{path}: skipped {len(others):,} other files; first: {others[0]}.",)
    return rows, ()


def _read_list(path: Path, config: ImagesConfig, bad_rows: BadRows) -> Iterator[Row]:
    """Yield the rows of a list; several labels or numbers are a JSON list."""
    for number, cells in read_labels(path, ("file", config.file_column), config, bad_rows):
        with bad_rows.catch(locate(path, number)):
            file, label = [as_text(cell).strip() for cell in cells]
            yield path.parent / file, label, locate(path, number)


def _shape_of(array: NDArray[np.uint8]) -> Shape:
    channels, height, width = array.shape
    return channels, height, width


def _read_idx(
    path: Path, config: ImagesConfig, shape: Shape | None, *, resizes: bool
) -> ImageDataset:
    pixels = read_idx(path, MAGIC_IMAGES, 3)
    beside = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    labels = read_idx(beside, MAGIC_LABELS, 1)
    if len(labels) != len(pixels):
        raise UserError(
            f"{path} has {len(pixels):,} images, but {beside.name} has {len(labels):,} labels."
        )
    size = (config.size, config.size) if config.size is not None else pixels.shape[1:]
    if shape and resizes:
        size = shape[1:]
    if size != pixels.shape[1:]:
        resized = []
        for image in pixels:
            scaled = Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR)
            resized.append(np.asarray(scaled, np.uint8))
        pixels = np.stack(resized)
    array = np.repeat(pixels[:, None], shape[0] if shape else 1, 1)
    if shape and array.shape[1:] != shape:
        sizes = f"{shape[2]} x {shape[1]}, got {array.shape[3]} x {array.shape[2]}"
        raise UserError(f"{path}: images must be of {sizes}: set --data.size.")
    names = tuple(str(label) for label in labels)
    locations = tuple(f"{path}, image {number}" for number in range(1, len(names) + 1))
    return ImageDataset(array, names, str(path), locations)
