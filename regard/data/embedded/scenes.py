"""Data sets of images with captions: composed scenes, or the user's own images and texts.

    scene(i) = items in some of the cells of a canvas, and a sentence: a pure function of (seed,
    split, i)

    +----------+----------+
    |  sandal  |   bag    |     "a sandal and a bag", "a bag right of a sandal"
    +----------+----------+

A scene has one to `most` items; each item after the first has the class of the first with
probability 1/3. Two items of different classes in one row or column are described by their spatial
relation in half of the scenes. Otherwise the sentence lists the items row by row, without stating
an order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regard.data.bad_rows import BadRows
from regard.data.config import ScenesConfig
from regard.data.embedded.sentences import describe_items, describe_relation
from regard.data.held_out import hold_out
from regard.data.images.dataset import (
    ImageDataset,
    image_shape,
    load_digits,
    read_image_array,
    read_images,
    read_training_images,
)
from regard.data.tables import is_table
from regard.data.text.labels import Labels
from regard.data.text.pairs import read_pairs
from regard.errors import UserError

Split = Literal["train", "val", "test"]

NOTHING = -1
"""Class of an empty cell."""

_SPLITS: dict[Split, int] = {"train": 0, "val": 1, "test": 2}
_DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True)
class DrawnScene:
    """Items of a canvas, and the text that describes them."""

    text: str
    items: tuple[int, ...]
    """Class of each cell, row by row; NOTHING for an empty cell."""
    images: tuple[int, ...]
    """Index of the image in each cell; NOTHING for an empty cell."""
    named: tuple[int, ...] = ()
    """The two classes whose spatial relation the text states, in its order; empty if none."""
    columns: int = 1
    """Number of cells in a row."""

    def matches(self, items: Sequence[int]) -> bool:
        """Return True if a canvas with these classes in its cells agrees with the text."""
        if sorted(items) != sorted(self.items):
            return False
        return not self.named or self._named_relation(items) == self._named_relation(self.items)

    def _named_relation(self, items: Sequence[int]) -> str | None:
        first, second = (list(items).index(number) for number in self.named)
        return _relation(first, second, self.columns)


class SceneDataset:
    """Data set of scenes, composed of the images of a split.

    numbers: class index of each image, below len(names).
    """

    def __init__(
        self,
        images: ImageDataset,
        numbers: Sequence[int],
        names: Sequence[str],
        config: ScenesConfig,
        *,
        seed: int,
        split: Split,
    ):
        self.images, self.names, self.config = images, tuple(names), config
        self.seed, self.split = seed, split
        self.origin = images.origin
        self.numbers = tuple(numbers)
        labels = np.asarray(self.numbers)
        self._of_class = [np.flatnonzero(labels == number) for number in range(len(names))]
        self._classes = [number for number, indices in enumerate(self._of_class) if len(indices)]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of a canvas."""
        channels, height, width = image_shape(self.images)
        return channels, height * self.config.rows, width * self.config.columns

    def epoch(self, number: int) -> range:
        """Return the indices of the scenes of an epoch, new ones in each epoch of training."""
        if self.split != "train":
            count = self.config.test_size
            return range(count if self.split == "test" else -(-count // 2))
        return range(number * self.config.epoch_size, (number + 1) * self.config.epoch_size)

    def left_out(self) -> tuple[str, ...]:
        """Return notices about skipped images, a line each."""
        return self.images.left_out()

    def scene(self, index: int) -> DrawnScene:
        """Return a scene: a pure function of (seed, split, index)."""
        config, num_cells = self.config, self.config.rows * self.config.columns
        stream = np.random.PCG64(np.random.SeedSequence((self.seed, _SPLITS[self.split], index)))
        numbers = stream.random_raw(2 + 3 * config.max_items + num_cells)
        count_draw, text_draw, *_ = draws = [int(number) for number in numbers]
        count = 1 + count_draw % config.max_items
        # Of each item: the class of the first item or not, its class, its image; then the cells.
        same_draws = draws[2:]
        class_draws = same_draws[config.max_items :]
        image_draws = class_draws[config.max_items :]
        cells = np.argsort(draws[-num_cells:], kind="stable")[:count].tolist()
        classes: list[int] = []
        items, images = [NOTHING] * num_cells, [NOTHING] * num_cells
        for i, cell in enumerate(cells):
            number = self._classes[class_draws[i] % len(self._classes)]
            if classes and same_draws[i] % 3 == 0:
                number = classes[0]
            classes.append(number)
            items[cell] = number
            images[cell] = int(self._of_class[number][image_draws[i] % len(self._of_class[number])])
        relation = None
        if count == 2 and classes[0] != classes[1]:
            relation = _relation(cells[0], cells[1], config.columns)
        if relation is None or text_draw % 2:
            text = describe_items([self.names[number] for number in items if number != NOTHING])
            return DrawnScene(text, tuple(items), tuple(images), columns=config.columns)
        text = describe_relation(self.names[classes[0]], relation, self.names[classes[1]])
        return DrawnScene(
            text, tuple(items), tuple(images), named=tuple(classes), columns=config.columns
        )

    def text(self, index: int) -> str:
        """Return the sentence that describes a scene."""
        return self.scene(index).text

    def canvas(self, index: int) -> NDArray[np.uint8]:
        """Draw a scene (channels, height, width)."""
        _, height, width = image_shape(self.images)
        canvas = np.zeros(self.shape, np.uint8)
        for cell, image in enumerate(self.scene(index).images):
            if image != NOTHING:
                row, column = divmod(cell, self.config.columns)
                top, left = row * height, column * width
                canvas[:, top : top + height, left : left + width] = self.images.pixels[image]
        return canvas


@dataclass(frozen=True)
class CaptionDataset:
    """Data set of the user's images with a text each; an epoch has all of them."""

    pixels: NDArray[np.uint8]
    """(count, channels, height, width)"""
    texts: tuple[str, ...]
    origin: str
    skipped: tuple[str, ...] = ()
    """Reason for each image that was skipped (on_bad = skip)."""
    notices: tuple[str, ...] = ()
    """Notices about the data, a line each."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image."""
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    def left_out(self) -> tuple[str, ...]:
        """Return notices about skipped images and texts, a line each."""
        if not self.skipped:
            return self.notices
        count, first = len(self.skipped), self.skipped[0]
        return f"{self.origin}: skipped {count:,}; first: {first}", *self.notices

    def epoch(self, number: int) -> range:
        """Return the indices of all images."""
        return range(len(self.texts))

    def text(self, index: int) -> str:
        """Return the text of an image."""
        return self.texts[index]

    def canvas(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels of an image (channels, height, width)."""
        return self.pixels[index]


CanvasDataset = SceneDataset | CaptionDataset
"""Canvases (images) with a text each, by index."""


def split_cells(canvases: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.uint8]:
    """Split canvases (count, channels, height, width) into their cells, row by row."""
    count, channels, height, width = canvases.shape
    grid = canvases.reshape(count, channels, rows, height // rows, columns, width // columns)
    return grid.transpose(0, 2, 4, 1, 3, 5).reshape(-1, channels, height // rows, width // columns)


def is_caption_file(path: str | Path | None) -> bool:
    """Return True if a path is a list of image files with texts, not images with classes."""
    return path is not None and is_table(path)


def load_training_canvases(
    config: ScenesConfig, *, seed: int
) -> tuple[CanvasDataset, CanvasDataset, Labels | None]:
    """Load the training and validation data, and the labels if images have classes."""
    if is_caption_file(config.train):
        assert config.train is not None
        train = read_captions(config.train, config)
        if config.val is not None:
            return train, _read_matching_captions(config.val, config, train.shape), None
        return *_split_captions(train, config.val_share, seed), None
    train_images, val_images = read_training_images(config, seed=seed)
    labels = Labels.from_names(train_images.labels, origin=train_images.origin)
    return (
        make_scenes(train_images, labels, config, seed=seed, split="train"),
        make_scenes(val_images, labels, config, seed=seed, split="val"),
        labels,
    )


def load_test_canvases(
    path: str | Path | None,
    config: ScenesConfig,
    *,
    seed: int,
    labels: Labels | None,
    shape: tuple[int, int, int],
) -> CanvasDataset:
    """Load test data: scenes of a folder's or IDX file's images, captions, or the test digits.

    shape:  of the canvases of the run.
    Raises: UserError for data of the other kind than in training, and images of another size.
    """
    if is_caption_file(path):
        assert path is not None
        return _read_matching_captions(path, config, shape)
    if labels is None:
        raise UserError(f"{path}: expected a table of images with texts, as in training.")
    channels, height, width = shape
    item = (channels, height // config.rows, width // config.columns)
    images = load_digits("test") if path is None else read_images(path, config, item)
    return make_scenes(images, labels, config, seed=seed, split="test")


def make_scenes(
    images: ImageDataset, labels: Labels, config: ScenesConfig, *, seed: int, split: Split
) -> SceneDataset:
    """Compose scenes of images, whose classes must be in `labels`."""
    keep, numbers = labels.encode(
        images.labels,
        config.on_bad,
        where=images.where,
        origin=images.origin,
        nouns=("class", "image"),
    )
    if len(keep) < len(images):
        unknown = []
        for i in sorted(set(range(len(images))) - set(keep)):
            unknown.append(f"{images.where(i)}: class {images.labels[i]!r} is unknown")
        known = images.take(keep, images.origin)
        images = replace(known, skipped=(*images.skipped, *unknown), notices=images.notices)
    return SceneDataset(
        images, numbers, class_names(labels, config), config, seed=seed, split=split
    )


def class_names(labels: Labels, config: ScenesConfig) -> tuple[str, ...]:
    """Return the names of classes in sentences: those of the config, of digits, or the labels."""
    names = config.names
    if not names:
        names = _DIGIT_NAMES if config.train is None else labels.names
    if len(names) != len(labels.names):
        raise UserError(
            f"`names` must have {len(labels.names)} entries, one for each class, got {len(names)}."
        )
    names = tuple(" ".join(name.replace("_", " ").split()) for name in names)
    if len(set(names)) < len(names) or not all(names):
        raise UserError(f"names of classes must differ, got {', '.join(map(repr, names))}.")
    return names


def read_captions(
    path: str | Path, config: ScenesConfig, shape: tuple[int, int, int] | None = None
) -> CaptionDataset:
    """Read the images and texts of a list.

    shape:  required (channels, height, width); None if the first image determines it.
    Raises: UserError naming the file and the line.
    """
    pairs = read_pairs(path, header=config.header, on_bad=config.on_bad, names=("image", "text"))
    bad_rows = BadRows(config.on_bad, "images", before=pairs.skipped)
    pixels, texts = [], []
    for index, (name, text) in enumerate(pairs):
        with bad_rows.catch():
            file, where = Path(path).parent / name, pairs.where(index)
            image = read_image_array(file, config, shape, where)
            shape = _shape(image)
            pixels.append(image)
            texts.append(text)
    if not texts:
        raise UserError(f"{path}: contains no image with a text.")
    return CaptionDataset(np.stack(pixels), tuple(texts), str(path), tuple(bad_rows.skipped))


def _read_matching_captions(
    path: str | Path, config: ScenesConfig, shape: tuple[int, int, int]
) -> CaptionDataset:
    if not is_caption_file(path):
        raise UserError(f"{path}: expected a table of images with texts, as in training.")
    return read_captions(path, config, shape)


def _split_captions(
    captions: CaptionDataset, share: float, seed: int
) -> tuple[CaptionDataset, CaptionDataset]:
    """Hold out `share` of the captions for validation."""
    parts = hold_out(len(captions.texts), share, seed=seed, origin=captions.origin, noun="images")
    both = []
    for index in (parts.train, parts.val):
        texts = tuple(captions.texts[i] for i in index)
        both.append(CaptionDataset(captions.pixels[index], texts, captions.origin))
    train, val = both
    return replace(train, skipped=captions.skipped), replace(val, notices=(parts.notice,))


def _shape(image: NDArray[np.uint8]) -> tuple[int, int, int]:
    """Return (channels, height, width)."""
    channels, height, width = image.shape
    return channels, height, width


def _relation(first: int, second: int, columns: int) -> str | None:
    """Return the spatial relation of two cells; None if they share no row or column."""
    first_row, first_column = divmod(first, columns)
    second_row, second_column = divmod(second, columns)
    if first_row == second_row and first_column != second_column:
        return "left of" if first_column < second_column else "right of"
    if first_column == second_column and first_row != second_row:
        return "above" if first_row < second_row else "below"
    return None
