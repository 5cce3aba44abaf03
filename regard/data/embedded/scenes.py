"""Data sets of images with captions: composed scenes, or the user's own images and texts.

    scene(i) = items in some of the cells of a canvas, and a sentence: a pure function of (seed,
    split, i)

A scene has one to `most` items; each item after the first has the class of the first with
probability 1/3. Two items of different classes in one row or column are described by their spatial
relation in half of the scenes. Otherwise the sentence lists the items row by row, without stating
an order.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regard.data.bad_rows import BadRows
from regard.data.config import ScenesConfig, scenes_of_epoch
from regard.data.embedded.sentences import describe_items, describe_relation
from regard.data.held_out import split_data
from regard.data.images.dataset import (
    ImageDataset,
    Row,
    load_digits,
    read_images,
    read_training_images,
)
from regard.data.tables import is_table
from regard.data.text.labels import Labels
from regard.data.text.pairs import read_pairs
from regard.errors import UserError
from regard.system.files import one_path

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


@dataclass
class SceneDataset:
    """Data set of scenes, composed of the images of a split."""

    images: ImageDataset
    numbers: Sequence[int]
    """Class index of each image, below len(names)."""
    names: Sequence[str]
    config: ScenesConfig
    _: KW_ONLY
    seed: int
    split: Split

    def __post_init__(self) -> None:
        self.origin, self.notices = self.images.origin, self.images.notices
        self._of_class = []
        for number in range(len(self.names)):
            self._of_class.append(np.flatnonzero(np.asarray(self.numbers) == number))
        self._classes = [number for number, indices in enumerate(self._of_class) if len(indices)]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of a canvas."""
        channels, height, width = self.images.shape
        return channels, height * self.config.rows, width * self.config.columns

    def epoch(self, number: int) -> range:
        return scenes_of_epoch(number, self.split, self.config)

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
            named = ()
        else:
            text = describe_relation(self.names[classes[0]], relation, self.names[classes[1]])
            named = tuple(classes)
        return DrawnScene(text, tuple(items), tuple(images), named, config.columns)

    def text(self, index: int) -> str:
        return self.scene(index).text

    def canvas(self, index: int) -> NDArray[np.uint8]:
        """Draw a scene (channels, height, width)."""
        _, height, width = self.images.shape
        canvas = np.zeros(self.shape, np.uint8)
        for cell, image in enumerate(self.scene(index).images):
            if image != NOTHING:
                row, column = divmod(cell, self.config.columns)
                top, left = row * height, column * width
                canvas[:, top : top + height, left : left + width] = self.images.pixels[image]
        return canvas


@dataclass(frozen=True)
class CaptionDataset(ImageDataset):
    """Data set of the user's images, whose labels are texts; an epoch has all of them."""

    def epoch(self, number: int) -> range:
        return range(len(self))

    def text(self, index: int) -> str:
        return self.labels[index]

    def canvas(self, index: int) -> NDArray[np.uint8]:
        return self.pixels[index]


CanvasDataset = SceneDataset | CaptionDataset
"""Canvases (images) with a text each, by index."""


def split_cells(canvases: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.uint8]:
    """Split canvases (count, channels, height, width) into their cells, row by row."""
    count, channels, height, width = canvases.shape
    grid = canvases.reshape(count, channels, rows, height // rows, columns, width // columns)
    return grid.transpose(0, 2, 4, 1, 3, 5).reshape(-1, channels, height // rows, width // columns)


def load_training_canvases(
    config: ScenesConfig, *, seed: int
) -> tuple[CanvasDataset, CanvasDataset, Labels | None]:
    """Load the training and validation data, and the labels if images have classes."""
    if config.train is not None and is_table(one_path(config.train)):
        train = read_captions(config.train, config)
        if config.val is not None:
            return train, read_captions(config.val, config, train.shape), None
        return *split_data(train, config.val_share, "images", seed=seed), None
    train_images, val_images = read_training_images(config, seed=seed)
    labels = Labels.from_names(train_images.labels, origin=train_images.origin)
    train = make_scenes(train_images, labels, config, seed=seed, split="train")
    return train, make_scenes(val_images, labels, config, seed=seed, split="val"), labels


def load_test_canvases(
    path: str | Path | Sequence[str] | None,
    config: ScenesConfig,
    *,
    seed: int,
    labels: Labels | None,
    shape: tuple[int, int, int],
) -> CanvasDataset:
    """Load test data: scenes of a folder's or IDX file's images, captions, or the test digits.
    Raises UserError for data of another kind or `shape` than in training."""
    if labels is None or (path is not None and is_table(one_path(path))):
        return read_captions(path, config, shape)
    channels, height, width = shape
    item = (channels, height // config.rows, width // config.columns)
    images = load_digits("test") if path is None else read_images(path, config, item)
    return make_scenes(images, labels, config, seed=seed, split="test")


def make_scenes(
    images: ImageDataset, labels: Labels, config: ScenesConfig, *, seed: int, split: Split
) -> SceneDataset:
    """Compose scenes of images, whose classes must be in `labels`."""
    bad_rows = BadRows(config.on_bad, "images")
    keep, numbers = [], []
    for i, label in enumerate(images.labels):
        with bad_rows.catch(images.where(i)):
            numbers.append(labels.index(label, ("class", "image")))
            keep.append(i)
    if not keep:
        raise UserError(f"{images.origin}: no image has a class of training.")
    notices = (*images.notices, *bad_rows.notices(images.origin))
    images = replace(images.take(keep), notices=notices)
    names = class_names(labels, config)
    return SceneDataset(images, numbers, names, config, seed=seed, split=split)


def class_names(labels: Labels, config: ScenesConfig) -> tuple[str, ...]:
    """Return the names of classes in sentences: those of the config, of digits, or the labels."""
    names = config.names
    if not names:
        names = _DIGIT_NAMES if config.train is None else labels.names
    if len(names) != len(labels.names):
        count = len(labels.names)
        raise UserError(f"`names` must have {count} entries, one for each class, got {len(names)}.")
    names = tuple(" ".join(name.replace("_", " ").split()) for name in names)
    if len(set(names)) < len(names) or not all(names):
        raise UserError(f"names of classes must differ, got {', '.join(map(repr, names))}.")
    return names


def read_captions(
    given: str | Path | Sequence[str] | None,
    config: ScenesConfig,
    shape: tuple[int, int, int] | None = None,
) -> CaptionDataset:
    """Read the images and texts of a table; `shape` as in `read_images`."""
    path = None if given is None else one_path(given)
    if path is None or not is_table(path):
        raise UserError(f"{path}: expected a table of images with texts, as in training.")
    pairs = read_pairs(path, config, names=("image", "text"))
    bad_rows = BadRows(config.on_bad, "images")
    rows: list[Row] = []
    for index, (name, text) in enumerate(pairs):
        rows.append((path.parent / name, text, pairs.where(index)))
    images = CaptionDataset.from_rows(rows, path, config, bad_rows, shape)
    return replace(images, notices=(*pairs.notices, *images.notices))


def _relation(first: int, second: int, columns: int) -> str | None:
    first_row, first_column = divmod(first, columns)
    second_row, second_column = divmod(second, columns)
    if first_row == second_row and first_column != second_column:
        return "left of" if first_column < second_column else "right of"
    if first_column == second_column and first_row != second_row:
        return "above" if first_row < second_row else "below"
    return None
