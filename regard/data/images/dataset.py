"""Data sets of labeled images: folders, lists, IDX files, and the embedded handwritten digits.

    FOLDER/cat/1.png ...                 one folder per class; formats as in
    regard.data.images.files FILE.tsv, FILE.csv, FILE.jsonl       a list of image files, relative to
    its folder, with their labels train-images-idx3-ubyte(.gz)         IDX: bytes (count, height,
    width); labels in the ...labels-idx1... beside it (nothing)                            1,797
    grayscale digits of 8 x 8

Pixels are bytes (count, channels, height, width). All images of a run have one size: `size`, or
that of the first. Test images of another size are resized, as inputs of predictions are.

Source: IDX, Y. LeCun's page of MNIST. Digits: E. Alpaydin and C. Kaynak, "Optical Recognition of
Handwritten Digits", UCI Machine Learning Repository, 1998, doi 10.24432/C50P49, CC BY 4.0 (the test
part).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from regard.data.bad_rows import BadRows
from regard.data.config import ImagesConfig
from regard.data.held_out import LABEL_HINT, hold_out
from regard.data.images.files import ImageFiles, UprightImage, read_image
from regard.data.images.folders import list_image_folders
from regard.data.images.idx import MAGIC_IMAGES, MAGIC_LABELS, read_idx
from regard.data.images.lists import FORMATS, read_image_list
from regard.data.text.label_normalizer import LabelNormalizer
from regard.data.text.lines import check_kind, locate
from regard.errors import UserError
from regard.system.compression import plain_name
from regard.system.files import check_file, file_limit, is_limit_set
from regard.system.memory import available_memory
from regard.system.terminal import format_count

_MOST_MEMORY = 4
"""Maximum memory of the pixels of a data set, as a multiple of `file_limit()`, if
REGARD_MAX_FILE_MIB is set."""
_DIGITS = Path(__file__).parents[1] / "embedded" / "digits.npz"
_DIGIT_SPLITS = {"train": (0, 1300), "val": (1300, 1500), "test": (1500, 1797)}


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
    """Notices about files that are not used, a line each."""

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, index: int) -> str:
        """Return the location of an image, for messages."""
        return self.locations[index]

    def left_out(self) -> tuple[str, ...]:
        """Return notices about skipped and unused files, a line each."""
        if not self.skipped:
            return self.notices
        return (
            *self.notices,
            f"{self.origin}: skipped {format_count(len(self.skipped), 'file')}; first: "
            f"{self.skipped[0]}",
        )

    def take(self, index: Sequence[int], origin: str) -> "ImageDataset":
        """Return the data set of the given indices."""
        labels, locations = (
            tuple(values[i] for i in index) for values in (self.labels, self.locations)
        )
        return ImageDataset(self.pixels[list(index)], labels, origin, locations)


def image_shape(images: ImageDataset) -> tuple[int, int, int]:
    """Return (channels, height, width) of the images."""
    channels, height, width = images.pixels.shape[1:]
    return channels, height, width


def memory_limit() -> int:
    """Return the maximum size in bytes of the pixels of a data set: 40% of the available memory,
    for they are copied once, or 4 times REGARD_MAX_FILE_MIB if it is set.
    """
    available = available_memory()
    return (
        _MOST_MEMORY * file_limit() if is_limit_set() or available is None else available * 2 // 5
    )


def read_training_images(config: ImagesConfig, *, seed: int) -> tuple[ImageDataset, ImageDataset]:
    """Read training and validation images: those of the config, a split of the training images, or
    the digits."""
    check_image_options(config)
    if config.train is None:
        return load_digits("train"), load_digits("val")
    train = read_images(config.train, config)
    if config.val is not None:
        return train, read_images(config.val, config, image_shape(train))
    labels = [(label,) for label in train.labels] if config.target == "class" else None
    hint = "" if Path(config.train).is_dir() else LABEL_HINT
    return split_validation(train, config.val_share, seed=seed, labels=labels, hint=hint)


def check_image_options(config: ImagesConfig) -> None:
    """Raise UserError for an option that none of the data of the config uses."""
    paths = [Path(path) for path in (config.train, config.val, config.test) if path is not None]
    has_list = any(Path(plain_name(path)).suffix in FORMATS and not path.is_dir() for path in paths)
    default = ImagesConfig()
    for names, kind, is_used in (
        (
            ("file_column", "label_column", "header"),
            "lists of files and labels (.tsv, .csv, .jsonl)",
            has_list,
        ),
        (("names",), "IDX files", not paths or any(not path.is_dir() for path in paths)),
    ):
        given = [name for name in names if getattr(config, name) != getattr(default, name)]
        if given and not is_used:
            option = given[0].replace("_", "-")
            raise UserError(
                f"--data.{option} is an option of {kind}, and none of the data is one: leave it "
                f"out."
            )


def read_images(
    path: str | Path,
    config: ImagesConfig,
    shape: tuple[int, int, int] | None = None,
    *,
    resizes: bool = False,
) -> ImageDataset:
    """Read the images of a folder, a list or an IDX file.

    shape:   required (channels, height, width); None if the first image determines it.
    resizes: images of another size than `shape` are resized, and counted in a notice, instead of
    refused.
    Raises: UserError naming the file, what was expected and what was found.
    """
    path = Path(path)
    if path.is_dir():
        return _normalize_labels(_from_folder(path, config, shape, resizes=resizes))
    if not path.exists():
        raise UserError(
            f"{path} does not exist; expected a folder with a folder per class, a list, or an IDX "
            f"file."
        )
    check_file(path)
    if Path(plain_name(path)).suffix in FORMATS:
        images = _from_list(path, config, shape, resizes=resizes)
        return (
            _normalize_labels(images) if config.target == "class" else images
        )  # several labels are split later
    check_kind(
        path,
        f"a folder with a folder of images for each class, a list ({', '.join(FORMATS)}) or an IDX "
        f"file",
    )
    return _from_idx(path, config, shape, resizes=resizes)


def read_image_array(
    file: Path, config: ImagesConfig, shape: tuple[int, int, int] | None, where: str = ""
) -> NDArray[np.uint8]:
    """Read an image file as an array (channels, height, width), which must have `shape` if it is
    given.

    where:  location of the reference to the file, for messages.
    Raises: UserError naming both.
    """
    return to_image_array(
        read_image(file, where), config, shape, f"{where}: {file}" if where else str(file)
    )


def to_image_array(
    upright: UprightImage,
    config: ImagesConfig,
    shape: tuple[int, int, int] | None,
    name: str,
    *,
    resizes: bool = False,
) -> NDArray[np.uint8]:
    """Return an image as an array (channels, height, width), which must have `shape` if it is
    given.

    resizes: an image of another size is resized.
    Raises:  UserError naming the image.
    """
    image = upright.image
    channels = shape[0] if shape else _channels(image, config)
    converted = image.convert("L" if channels == 1 else "RGB")
    size = None if config.size is None else (config.size, config.size)
    if shape and resizes:
        size = shape[2], shape[1]
    if size is not None:
        converted = converted.resize(size, Image.Resampling.BILINEAR)
    array = np.atleast_3d(np.array(converted, np.uint8)).transpose(2, 0, 1)
    if shape and array.shape != shape:
        size = (
            f"{upright.describe_size()} pixels"
            if config.size is None
            else f"{config.size} x {config.size} pixels"
        )
        sizes = f"{size}, but the images before it have {shape[2]} x {shape[1]}"
        raise UserError(f"{name}: has {sizes}: set --data.size to resize all images.")
    return array


def split_validation(
    images: ImageDataset,
    share: float,
    *,
    seed: int,
    labels: Sequence[Iterable[str]] | None = None,
    hint: str = "",
) -> tuple[ImageDataset, ImageDataset]:
    """Hold out `share` of the images for validation; see `regard.data.held_out.hold_out`."""
    names = {"origin": images.origin, "noun": "images", "hint": hint}
    parts = hold_out(len(images), share, seed=seed, labels=labels, **names)
    train, val = (images.take(index, images.origin) for index in (parts.train, parts.val))
    return replace(train, skipped=images.skipped, notices=images.notices), replace(
        val, notices=(parts.notice,)
    )


def load_digits(split: str) -> ImageDataset:
    """Load the embedded handwritten digits: 1,300 for training, 200 for validation, 297 (other
    writers) for tests."""
    with np.load(_DIGITS, allow_pickle=False) as content:
        pixels, labels = content["pixels"], content["labels"]
    first, last = _DIGIT_SPLITS[split]
    pixels = np.minimum(pixels[first:last, None].astype(np.int64) * 16, 255).astype(np.uint8)
    names = tuple(str(label) for label in labels[first:last])
    return ImageDataset(
        pixels,
        names,
        f"handwritten digits, {split}",
        tuple(f"digit {i}" for i in range(first, last)),
    )


def _normalize_labels(images: ImageDataset) -> ImageDataset:
    normalizer = LabelNormalizer()
    labels = tuple(normalizer[label] for label in images.labels)
    normalizer.warn(images.origin)
    return replace(images, labels=labels)


def _from_folder(
    path: Path, config: ImagesConfig, shape: tuple[int, int, int] | None, *, resizes: bool
) -> ImageDataset:
    folders = list_image_folders(path, config.on_bad)
    rows = [(file, name, str(file)) for file, name in folders.files]
    images = _read_all(path, rows, config, shape, resizes=resizes)
    return replace(images, notices=(*folders.notices, *images.notices))


def _from_list(
    path: Path, config: ImagesConfig, shape: tuple[int, int, int] | None, *, resizes: bool
) -> ImageDataset:
    """Read a list of files and labels: two columns, or JSON objects with `file` and `label`."""
    listed, skipped = read_image_list(path, config)
    files = ImageFiles.from_path(path.parent)
    rows, bad_rows = [], BadRows(config.on_bad, "images", before=skipped)
    for line, name, label in listed:
        with bad_rows.catch():
            where = f"{locate(path, line)} ({name})"
            rows.append((files.resolve(name, where), label, where))
    images = _read_all(path, rows, config, shape, resizes=resizes)
    return replace(images, skipped=(*bad_rows.skipped, *images.skipped))


def _read_all(
    path: Path,
    rows: Sequence[tuple[Path, str, str]],
    config: ImagesConfig,
    shape: tuple[int, int, int] | None,
    *,
    resizes: bool,
) -> ImageDataset:
    """Read the images of (file, label, location). Bad ones are skipped or raised, depending on
    `config.on_bad`."""
    arrays, labels, locations, bad_rows = [], [], [], BadRows(config.on_bad, "images")
    others: list[str] = []
    most = memory_limit()
    for file, label, location in rows:
        array = None
        with bad_rows.catch():
            where = "" if location == str(file) else location
            upright = read_image(file, where)
            array = to_image_array(
                upright, config, shape, f"{where}: {file}" if where else str(file), resizes=resizes
            )
            if shape and config.size is None and upright.image.size != (shape[2], shape[1]):
                others.append(f"{location}, {upright.describe_size()}")
        if array is None:
            continue
        if (len(arrays) + 1) * array.nbytes > most:
            raise UserError(
                f"{location}: the images up to here take more than {most:,} bytes of memory: set "
                f"--data.size to resize "
                "all images, or raise REGARD_MAX_FILE_MIB if it is set."
            )
        shape = (array.shape[0], array.shape[1], array.shape[2])
        arrays.append(array)
        labels.append(label)
        locations.append(location)
    if not arrays:
        raise UserError(f"{path}: contains no readable image; first problem: {bad_rows.skipped[0]}")
    notices = _describe_resized(path, others, arrays[0].shape)
    return ImageDataset(
        np.stack(arrays), tuple(labels), str(path), tuple(locations), bad_rows.skipped, notices
    )


def _describe_resized(path: Path, others: Sequence[str], shape: Sequence[int]) -> tuple[str, ...]:
    """Return a notice about images of another size, if there are any. others: location and size of
    each."""
    size = f"{shape[2]} x {shape[1]} pixels, the size of the training images"
    return (
        (f"{path}: resized {format_count(len(others), 'image')} to {size}; first: {others[0]}.",)
        if others
        else ()
    )


def _channels(image: Image.Image, config: ImagesConfig) -> int:
    if config.color != "auto":
        return 1 if config.color == "gray" else 3
    return 1 if image.mode in ("1", "L", "LA") else 3


def _from_idx(
    path: Path, config: ImagesConfig, shape: tuple[int, int, int] | None, *, resizes: bool
) -> ImageDataset:
    pixels = read_idx(path, MAGIC_IMAGES, 3)
    beside = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    if beside == path or not beside.exists():
        raise UserError(
            f"{path}: its labels must be in {beside.name} beside it, which does not exist."
        )
    labels = read_idx(beside, MAGIC_LABELS, 1)
    if len(labels) != len(pixels):
        raise UserError(
            f"{path} has {len(pixels):,} images, but {beside.name} has {len(labels):,} labels."
        )
    array, others = pixels[:, None], []
    size = None if config.size is None else (config.size, config.size)
    if shape and resizes:
        size = shape[1:]
    if size is not None and array.shape[2:] != size:
        if config.size is None:
            stated = f"{pixels.shape[2]} x {pixels.shape[1]}"
            others = [f"{path}, image {number}, {stated}" for number in range(1, len(pixels) + 1)]
        array = np.stack([_resize(image, size) for image in pixels])[:, None]
    if shape and shape[0] != 1:
        array = np.repeat(array, shape[0], 1)
    if shape and array.shape[1:] != shape:
        sizes = f"{shape[2]} x {shape[1]} as in the run, got {array.shape[3]} x {array.shape[2]}"
        raise UserError(f"{path}: images must be {sizes}.")
    names = tuple(str(label) for label in labels)
    locations = tuple(f"{path}, image {number}" for number in range(1, len(names) + 1))
    return ImageDataset(
        array,
        names,
        str(path),
        locations,
        notices=_describe_resized(path, others, (1, *array.shape[2:])),
    )


def _resize(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return an image (height, width) at another height and width."""
    return np.asarray(
        Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR), np.uint8
    )
