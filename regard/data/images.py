"""Images with a class each, or other targets: folders, lists, IDX files, the handwritten digits that come with this.

    FOLDER/cat/1.png ...                 a folder a class; formats as regard.data.image_files
    FILE.tsv, FILE.csv, FILE.jsonl       a list of image files, named from where it is, and what is right for each
    train-images-idx3-ubyte(.gz)         IDX: bytes (count, height, width); labels in the ...labels-idx1... beside it
    (nothing)                            1,797 digits of 8 x 8, gray

Pixels are bytes (count, channels, height, width). All images of a run have one size: `size`, or that of the first.

Source: IDX, Y. LeCun's page of MNIST. Digits: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits",
UCI Machine Learning Repository, 1998, doi 10.24432/C50P49, CC BY 4.0 (the test part).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from regard.data.config import ImagesConfig
from regard.data.image_files import path_of_name, read_image
from regard.data.image_folders import list_image_folders
from regard.data.image_lists import read_listed
from regard.data.spellings import Spellings
from regard.errors import UserError
from regard.files import check_file, file_limit, read_unpacked

_MAGIC_IMAGES, _MAGIC_LABELS = 2051, 2049
_MOST_MEMORY = 4
"""Times `file_limit()` that the pixels of all images of a set may take."""
_DIGITS = Path(__file__).parent / "digits.npz"
_DIGIT_SPLITS = {"train": (0, 1300), "val": (1300, 1500), "test": (1500, 1797)}


@dataclass(frozen=True)
class Images:
    """Images, and what files say of each: the name of its class, its labels, its number."""

    pixels: NDArray[np.uint8]
    """(count, channels, height, width)"""
    labels: tuple[str, ...]
    origin: str
    places: tuple[str, ...]
    """Which file, or which number in a file, each is."""
    skipped: tuple[str, ...] = ()
    """What was left out because the user asked for that, and why."""
    notices: tuple[str, ...] = ()
    """Files that are not among the images, a line each."""

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, index: int) -> str:
        """The place of an image, for messages."""
        return self.places[index]

    def left_out(self) -> tuple[str, ...]:
        """What was left out, for people, a line each."""
        if not self.skipped:
            return self.notices
        return *self.notices, f"{self.origin}: skipped {len(self.skipped)} files; first: {self.skipped[0]}"

    def take(self, index: Sequence[int], origin: str) -> "Images":
        """Some of them."""
        labels, places = (tuple(of[i] for i in index) for of in (self.labels, self.places))
        return Images(self.pixels[list(index)], labels, origin, places)


def shape_of(images: Images) -> tuple[int, int, int]:
    """(channels, height, width)"""
    channels, height, width = images.pixels.shape[1:]
    return channels, height, width


def read_training(config: ImagesConfig, *, seed: int) -> tuple[Images, Images]:
    """Images to learn from and to choose by: those that the config names, a share split off, or the digits."""
    if config.train is None:
        return embedded_digits("train"), embedded_digits("val")
    train = read_images(config.train, config)
    if config.val is not None:
        return train, read_images(config.val, config, shape_of(train))
    first, last = split_off(train, config.val_share, seed=seed if Path(config.train).is_dir() else 0)
    return replace(first, skipped=train.skipped, notices=train.notices), last


def read_images(path: str | Path, config: ImagesConfig, shape: tuple[int, int, int] | None = None) -> Images:
    """All images of a folder or an IDX file.

    shape: (channels, height, width) that the run has; None if these images decide it.
    Raises:  UserError naming the file, what was expected and what was got.
    """
    path = Path(path)
    if path.is_dir():
        return _in_one_spelling(_from_folder(path, config, shape))
    if not path.exists():
        raise UserError(f"{path} does not exist; images are a folder with a folder per class, a list, or an IDX file.")
    check_file(path)
    if path.suffix in (".tsv", ".csv", ".jsonl"):
        images = _from_list(path, config, shape)
        return _in_one_spelling(images) if config.target == "class" else images  # several labels are told apart later
    return _from_idx(path, config, shape)


def split_off(images: Images, share: float, *, seed: int = 0) -> tuple[Images, Images]:
    """The images without their last `share`, and those, in their order, or (seed not 0) in a random one."""
    cut = len(images) - max(1, round(len(images) * share))
    if cut < 1:
        raise UserError(f"{images.origin}: {len(images)} images are too few to keep a share of {share} for validation.")
    # Folders come class by class, which a random order mixes; other files are mixed already.
    index = list(range(len(images)))
    if seed:
        index = np.random.Generator(np.random.PCG64(seed)).permutation(len(images)).tolist()
    return images.take(index[:cut], images.origin), images.take(index[cut:], f"{images.origin}, kept for validation")


def embedded_digits(split: str) -> Images:
    """Handwritten digits: 1,300 to learn from, 200 to choose by, 297 to test on, by other writers at the end."""
    with np.load(_DIGITS, allow_pickle=False) as content:
        pixels, labels = content["pixels"], content["labels"]
    first, last = _DIGIT_SPLITS[split]
    pixels = np.minimum(pixels[first:last, None].astype(np.int64) * 16, 255).astype(np.uint8)
    names = tuple(str(label) for label in labels[first:last])
    return Images(pixels, names, f"handwritten digits, {split}", tuple(f"digit {i}" for i in range(first, last)))


def _in_one_spelling(images: Images) -> Images:
    spellings = Spellings()
    labels = tuple(spellings[label] for label in images.labels)
    spellings.warn_merged(images.origin)
    return replace(images, labels=labels)


def _from_folder(path: Path, config: ImagesConfig, shape: tuple[int, int, int] | None) -> Images:
    found = list_image_folders(path, config.on_bad)
    rows = [(file, name, str(file)) for file, name in found.files]
    return replace(_read_all(path, rows, config, shape), notices=found.notices)


def _from_list(path: Path, config: ImagesConfig, shape: tuple[int, int, int] | None) -> Images:
    """Each line a file and its label: two columns, or an object with `file` and `label`."""
    listed, skipped = read_listed(path, config)
    rows = [(path_of_name(path.parent, name), label, f"{path}, line {line} ({name})") for line, name, label in listed]
    images = _read_all(path, rows, config, shape)
    return replace(images, skipped=(*skipped, *images.skipped))


def _read_all(
    path: Path, rows: Sequence[tuple[Path, str, str]], config: ImagesConfig, shape: tuple[int, int, int] | None
) -> Images:
    """The images of (file, label, place); bad ones are skipped or raised, as the config says."""
    arrays, labels, places, skipped = [], [], [], []
    most = _MOST_MEMORY * file_limit()
    for file, label, place in rows:
        try:
            array = read_one(file, config, shape, "" if place == str(file) else place)
        except UserError as error:
            if config.on_bad == "error":
                raise UserError(f"{error} With `on_bad` = skip, such images are left out and counted.") from error
            skipped.append(str(error))
            continue
        if (len(arrays) + 1) * array.nbytes > most:
            raise UserError(
                f"{place}: the images up to here take more than {most:,} bytes of memory: give the size that all are "
                "brought to (data.size), or raise REGARD_MAX_FILE_MIB."
            )
        shape = (array.shape[0], array.shape[1], array.shape[2])
        arrays.append(array)
        labels.append(label)
        places.append(place)
    if not arrays:
        raise UserError(f"{path}: no image in it can be read; first: {skipped[0]}")
    return Images(np.stack(arrays), tuple(labels), str(path), tuple(places), tuple(skipped))


def read_one(
    file: Path, config: ImagesConfig, shape: tuple[int, int, int] | None, where: str = ""
) -> NDArray[np.uint8]:
    """One image file as (channels, height, width); of the shape, if one is given.

    where:  the place that names the file, for messages.
    Raises: UserError naming both.
    """
    found = read_image(file, where)
    image = found.image
    channels = shape[0] if shape else _channels(image, config)
    converted = image.convert("L" if channels == 1 else "RGB")
    if config.size is not None:
        converted = converted.resize((config.size, config.size), Image.Resampling.BILINEAR)
    array = np.atleast_3d(np.array(converted, np.uint8)).transpose(2, 0, 1)
    if shape and array.shape != shape:
        size = f"{found.describe_size()} pixels" if config.size is None else f"{config.size} x {config.size} pixels"
        sizes = f"{size}, but the images before it {shape[2]} x {shape[1]}"
        name = f"{where}: {file}" if where else str(file)
        raise UserError(f"{name}: has {sizes}: give the size that all are brought to (data.size).")
    return array


def _channels(image: Image.Image, config: ImagesConfig) -> int:
    if config.color != "auto":
        return 1 if config.color == "gray" else 3
    return 1 if image.mode in ("1", "L", "LA") else 3


def _from_idx(path: Path, config: ImagesConfig, shape: tuple[int, int, int] | None) -> Images:
    pixels = _idx(path, _MAGIC_IMAGES, 3)
    beside = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    if beside == path or not beside.exists():
        raise UserError(f"{path}: its labels must be in {beside.name} beside it, but there is no such file.")
    labels = _idx(beside, _MAGIC_LABELS, 1)
    if len(labels) != len(pixels):
        raise UserError(f"{path} holds {len(pixels):,} images, but {beside.name} {len(labels):,} labels.")
    array = pixels[:, None]
    if config.size is not None and array.shape[2:] != (config.size, config.size):
        array = np.stack([_resized(one, config.size) for one in pixels])[:, None]
    if shape and shape[0] != 1:
        array = np.repeat(array, shape[0], 1)
    if shape and array.shape[1:] != shape:
        sizes = f"{array.shape[3]} x {array.shape[2]}, but the run's {shape[2]} x {shape[1]}"
        raise UserError(f"{path}: images are {sizes}.")
    names = tuple(str(label) for label in labels)
    return Images(array, names, str(path), tuple(f"{path}, image {i}" for i in range(1, len(names) + 1)))


def _resized(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR), np.uint8)


def _idx(path: Path, magic: int, axes: int) -> NDArray[np.uint8]:
    """The bytes of an IDX file, which says its own sizes."""
    content = read_unpacked(path)
    header = np.frombuffer(content[: 4 + 4 * axes], ">i4") if len(content) >= 4 + 4 * axes else np.zeros(0, ">i4")
    if not len(header) or header[0] != magic:
        got = f"{header[0]}" if len(header) else f"{len(content)} bytes"
        raise UserError(f"{path}: no IDX file of {'images' if axes > 1 else 'labels'}: expected {magic}, got {got}.")
    sizes = tuple(int(size) for size in header[1:])
    said = " x ".join(map(str, sizes))
    if min(sizes) < 1:
        raise UserError(f"{path}: says {said} bytes; expected sizes of at least 1.")
    body = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    if body.size != math.prod(sizes):
        raise UserError(f"{path}: says {said} bytes, but holds {body.size:,}: cut off?")
    return body.reshape(sizes).copy()  # what torch shares must be writable
