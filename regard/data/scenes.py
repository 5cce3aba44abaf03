"""Canvases and the texts that describe them: scenes made on the fly of images with a class each, or the user's own.

    scene(i) = items at some of the places of a canvas, and a sentence: a pure function of (seed, split, i)

    +----------+----------+
    |  sandal  |   bag    |     "a sandal and a bag", "a bag right of a sandal"
    +----------+----------+

One to `most` items; each after the first is of the first one's class in one scene of three. Two items of two
classes in one row or column are described by how they lie in every other scene. Otherwise items are named as one reads,
row by row, which a drawing need not follow: the text does not say so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from regard.data.config import OnBad, ScenesConfig
from regard.data.image_files import path_of_name
from regard.data.images import Images, embedded_digits, read_images, read_one, read_training, shape_of
from regard.data.labeled import Labels
from regard.data.pairs import read_pairs
from regard.data.sentences import related, sentence
from regard.errors import UserError
from regard.packed import plain_name

Split = Literal["train", "val", "test"]

NOTHING = -1
"""What is at a place where no item is."""

_SPLITS: dict[Split, int] = {"train": 0, "val": 1, "test": 2}
_DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@runtime_checkable
class Drawings(Protocol):
    """Numbered canvases with a text each."""

    @property
    def origin(self) -> str:
        """Where they are from, for people."""
        ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of a canvas."""
        ...

    def epoch(self, number: int) -> Sequence[int]:
        """The numbers of the canvases of an epoch."""
        ...

    def left_out(self) -> tuple[str, ...]:
        """What was left out, for people, a line each."""
        ...

    def text(self, index: int) -> str:
        """What describes a canvas."""
        ...

    def canvas(self, index: int) -> NDArray[np.uint8]:
        """The pixels (channels, height, width)."""
        ...


@dataclass(frozen=True)
class Scene:
    """What is where on a canvas, and the text that says so."""

    text: str
    items: tuple[int, ...]
    """The class at each place, row by row; NOTHING where there is none."""
    images: tuple[int, ...]
    """Which image is there."""
    named: tuple[int, ...] = ()
    """The two classes whose relation the text tells, as it names them; empty if it names no order."""
    columns: int = 1
    """Places in a row."""

    def is_shown_by(self, found: Sequence[int]) -> bool:
        """Whether a canvas with these classes at its places is what the text asks for."""
        if sorted(found) != sorted(self.items):
            return False
        return not self.named or self._lie(found) == self._lie(self.items)

    def _lie(self, items: Sequence[int]) -> str | None:
        one, other = (list(items).index(number) for number in self.named)
        return _relation(one, other, self.columns)


class Scenes:
    """Scenes of the images of a split.

    numbers: the class of each image, as a number below len(names).
    """

    def __init__(
        self,
        images: Images,
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
        self._classes = [number for number, found in enumerate(self._of_class) if len(found)]

    @property
    def shape(self) -> tuple[int, int, int]:
        """All places, side by side."""
        channels, height, width = shape_of(self.images)
        return channels, height * self.config.rows, width * self.config.columns

    def epoch(self, number: int) -> range:
        """New scenes for each epoch of training; of the others the same few."""
        if self.split != "train":
            count = self.config.test_scenes
            return range(count if self.split == "test" else -(-count // 2))
        return range(number * self.config.scenes, (number + 1) * self.config.scenes)

    def left_out(self) -> tuple[str, ...]:
        """What was left out of the images."""
        return self.images.left_out()

    def scene(self, index: int) -> Scene:
        """What is where."""
        config, places = self.config, self.config.rows * self.config.columns
        stream = np.random.PCG64(np.random.SeedSequence((self.seed, _SPLITS[self.split], index)))
        counting, *draws = (int(number) for number in stream.random_raw(2 + 3 * config.most + places))
        count = 1 + counting % config.most
        told, where = draws[0], np.argsort(draws[-places:], kind="stable")[:count].tolist()
        classes: list[int] = []
        for again, which in zip(draws[1 : count + 1], draws[config.most + 1 :], strict=False):
            is_same = bool(classes) and again % 3 == 0
            classes.append(classes[0] if is_same else self._classes[which % len(self._classes)])
        items, images = [NOTHING] * places, [NOTHING] * places
        for place, number, which in zip(where, classes, draws[2 * config.most + 1 :], strict=False):
            items[place] = number
            images[place] = int(self._of_class[number][which % len(self._of_class[number])])
        lie = _relation(where[0], where[1], config.columns) if count == 2 and classes[0] != classes[1] else None
        if lie is None or told % 2:
            names = [self.names[number] for number in items if number != NOTHING]
            return Scene(sentence(names), tuple(items), tuple(images), columns=config.columns)
        names = [self.names[number] for number in classes]
        text = related(names[0], lie, names[1])
        return Scene(text, tuple(items), tuple(images), named=tuple(classes), columns=config.columns)

    def text(self, index: int) -> str:
        """The sentence."""
        return self.scene(index).text

    def canvas(self, index: int) -> NDArray[np.uint8]:
        """The images at their places."""
        _, height, width = shape_of(self.images)
        canvas = np.zeros(self.shape, np.uint8)
        for place, image in enumerate(self.scene(index).images):
            if image != NOTHING:
                row, column = divmod(place, self.config.columns)
                down, right = row * height, column * width
                canvas[:, down : down + height, right : right + width] = self.images.pixels[image]
        return canvas


@dataclass(frozen=True)
class Captions:
    """The user's own images with a text each; an epoch shows them all."""

    pixels: NDArray[np.uint8]
    """(count, channels, height, width)"""
    texts: tuple[str, ...]
    origin: str
    skipped: tuple[str, ...] = ()
    """What was left out because the user asked for that, and why."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of every image."""
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    def left_out(self) -> tuple[str, ...]:
        """The number of images and texts that were skipped, and the first of them."""
        return (f"{self.origin}: skipped {len(self.skipped)}; first: {self.skipped[0]}",) if self.skipped else ()

    def epoch(self, number: int) -> range:
        """All."""
        return range(len(self.texts))

    def text(self, index: int) -> str:
        """As it was written."""
        return self.texts[index]

    def canvas(self, index: int) -> NDArray[np.uint8]:
        """As it was read."""
        return self.pixels[index]


def cells(canvases: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.uint8]:
    """Canvases (count, channels, height, width) cut into their places, row by row: (count * places, ...)."""
    count, channels, height, width = canvases.shape
    cut = canvases.reshape(count, channels, rows, height // rows, columns, width // columns)
    return cut.transpose(0, 2, 4, 1, 3, 5).reshape(-1, channels, height // rows, width // columns)


def is_captions(path: str | Path | None) -> bool:
    """Whether a path names image files with texts, and not images with classes."""
    return path is not None and plain_name(path).endswith((".tsv", ".tab", ".jsonl", ".ndjson"))


def training_drawings(config: ScenesConfig, *, seed: int) -> tuple[Drawings, Drawings, Labels | None]:
    """What is learned from, what chooses the weights, and the classes, if there are any.

    Raises: UserError naming the file, what was expected and what was got.
    """
    if is_captions(config.train):
        assert config.train is not None
        train = read_captions(config.train, config)
        if config.val is not None:
            return train, _captions_beside(config.val, config, train.shape), None
        return *_split_captions(train, config.val_share, seed), None
    images, chosen = read_training(config, seed=seed)
    labels = Labels.of(images.labels, origin=images.origin)
    return (
        scenes_of(images, labels, config, seed=seed, split="train"),
        scenes_of(chosen, labels, config, seed=seed, split="val"),
        labels,
    )


def drawings_to_test(
    path: str | Path | None, config: ScenesConfig, *, seed: int, labels: Labels | None, shape: tuple[int, int, int]
) -> Drawings:
    """What is tested on: scenes of the images of a folder or an IDX file, captions; the digits' test part if None.

    shape:  of the run's canvases.
    Raises: UserError also if there are classes and texts of one's own, or images of another size.
    """
    if is_captions(path):
        assert path is not None
        return _captions_beside(path, config, shape)
    if labels is None:
        raise UserError(f"{path}: the run learned from images with texts: expected FILE.tsv or FILE.jsonl of such.")
    channels, height, width = shape
    item = (channels, height // config.rows, width // config.columns)
    images = embedded_digits("test") if path is None else read_images(path, config, item)
    return scenes_of(images, labels, config, seed=seed, split="test")


def scenes_of(images: Images, labels: Labels, config: ScenesConfig, *, seed: int, split: Split) -> Scenes:
    """Scenes of images whose classes are known."""
    place = {"where": images.where, "origin": images.origin, "what": ("class", "image")}
    keep, numbers = labels.numbers(images.labels, config.on_bad, **place)
    if len(keep) < len(images):
        left = [
            f"{images.where(i)}: class {images.labels[i]!r} is unknown" for i in set(range(len(images))) - set(keep)
        ]
        kept = images.take(keep, images.origin)
        images = replace(kept, skipped=(*images.skipped, *left), notices=images.notices)
    return Scenes(images, numbers, item_names(labels, config), config, seed=seed, split=split)


def item_names(labels: Labels, config: ScenesConfig) -> tuple[str, ...]:
    """What sentences call the classes: data.names by number; digits by their words; else their own names.

    Raises: UserError if there is not one other name for each class.
    """
    names, given = labels.names, config.names or (_DIGIT_NAMES if config.train is None else ())
    if given:
        if len(given) != len(names):
            raise UserError(f"`names` must be {len(names)}, one for each class, but are {len(given)}.")
        names = given
    names = tuple(" ".join(name.replace("_", " ").split()) for name in names)
    if len(set(names)) < len(names) or not all(names):
        raise UserError(f"the names of the classes must all differ, but are {', '.join(map(repr, names))}.")
    return names


def read_captions(
    path: str | Path, config: ScenesConfig, shape: tuple[int, int, int] | None = None, on_bad: OnBad | None = None
) -> Captions:
    """The images and texts that a file names.

    shape:  (channels, height, width) that all must have; the first image's if None.
    Raises: UserError naming the file and the line.
    """
    on_bad = on_bad or config.on_bad
    pairs = read_pairs(path, on_bad=on_bad, names=("image", "text"))
    pixels, texts = [], []
    skipped = []
    for reason, count in pairs.skipped.counts.items():
        examples = pairs.skipped.examples[reason]
        skipped += [*examples, *[f"{path}: {reason}"] * (count - len(examples))]
    for index, (name, text) in enumerate(pairs):
        file = path_of_name(Path(path).parent, name)
        try:
            pixels.append(read_one(file, config, shape, pairs.where(index)))
        except UserError as error:
            if on_bad == "error":
                hint = f"Names of images are relative to the folder of {Path(path).name}."
                raise UserError(f"{error} {hint}") from error
            skipped.append(str(error))
            continue
        shape = _shape(pixels[-1])
        texts.append(text)
    if not texts:
        raise UserError(f"{path}: there is no image with a text in it.")
    return Captions(np.stack(pixels), tuple(texts), str(path), tuple(skipped))


def _shape(image: NDArray[np.uint8]) -> tuple[int, int, int]:
    """(channels, height, width)"""
    channels, height, width = image.shape
    return channels, height, width


def _captions_beside(path: str | Path, config: ScenesConfig, shape: tuple[int, int, int]) -> Captions:
    if not is_captions(path):
        raise UserError(f"{path}: expected FILE.tsv or FILE.jsonl of images with texts, as in training.")
    return read_captions(path, config, shape)


def _split_captions(captions: Captions, share: float, seed: int) -> tuple[Captions, Captions]:
    """All but a share of them, and that, drawn at random."""
    count = len(captions.texts)
    cut = count - max(1, round(count * share))
    if cut < 1:
        raise UserError(f"{captions.origin}: {count} images are too few to keep a share of {share} for validation.")
    order = np.random.Generator(np.random.PCG64(seed)).permutation(count)

    def part(index: NDArray[np.int64], origin: str) -> Captions:
        return Captions(captions.pixels[index], tuple(captions.texts[i] for i in index), origin)

    return replace(part(order[:cut], captions.origin), skipped=captions.skipped), part(
        order[cut:], f"{captions.origin}, kept for validation"
    )


def _relation(one: int, other: int, columns: int) -> str | None:
    """How place `one` lies to `other`, if they share a row or a column."""
    (row, column), (row_other, column_other) = divmod(one, columns), divmod(other, columns)
    if row == row_other and column != column_other:
        return "left of" if column < column_other else "right of"
    if column == column_other and row != row_other:
        return "above" if row < row_other else "below"
    return None
