"""Data sets of images with captions: lists of files and sentences, or COCO; a folder or a tar.

    1.png<TAB>a black cat on a sofa                 FILE.tsv; a further line with 1.png is another
                                                    caption; FILE.csv: columns image, caption
    {"image": "1.png", "caption": "a black cat"}    FILE.jsonl
    {"images": [...], "annotations": [...]}         FILE.json (regard.data.images.coco)

Every image is opened when the captions are read, so that none fails in training. Images are scaled
to fit into the size of the input, and padded with gray.

Source: chen2015 (the format of COCO's captions).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.bad_rows import BadRows
from regard.data.batches import Batch, BatchesByCount, generator, pad
from regard.data.config import CaptionsConfig, OnBad
from regard.data.held_out import hold_out
from regard.data.images.box_batches import resize_and_pad
from regard.data.images.coco import read_coco_captions
from regard.data.images.files import ImageFiles
from regard.data.text.pairs import read_pairs
from regard.data.tokenizer import BOS, EOS
from regard.errors import UserError
from regard.system.files import plain_name

_CACHE_BYTES = 2 << 30
_CHOICE = 11
"""Stream of the random numbers that choose a caption."""


class CaptionedFile(NamedTuple):
    """File name of an image, with at least one caption."""

    file: str
    where: str
    """Location of its first mention, for messages."""
    captions: list[tuple[str, str]]
    """Location and text of each."""


@runtime_checkable
class DescribedImages(Protocol):
    """Data set of images with one or several captions each, by index."""

    @property
    def origin(self) -> str:
        """Description of the source, for messages."""

    @property
    def skipped(self) -> Sequence[str]:
        """Reason for each line or image that was left out."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices about the data, a line each."""

    def epoch(self, number: int) -> range:
        """Return the indices of the images of an epoch."""
        ...

    def name(self, index: int) -> str:
        """Return the name of an image."""
        ...

    def captions(self, index: int) -> Sequence[str]:
        """Return the captions of an image, at least one."""
        ...

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """Return an image at the size of the input (height, width, 3)."""
        ...


@dataclass(frozen=True)
class CaptionedImages:
    """Images and captions that were read from a file; an epoch has all of them."""

    items: tuple[CaptionedFile, ...]
    files: ImageFiles
    config: CaptionsConfig
    origin: str
    skipped: Sequence[str] = ()
    """Reason for each line or image that was skipped (on_bad = skip)."""
    notices: tuple[str, ...] = ()
    _cache: dict[str, NDArray[np.uint8]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.items)

    def epoch(self, number: int) -> range:
        """Return the indices of all images."""
        return range(len(self.items))

    def name(self, index: int) -> str:
        """Return the name of the file of an image."""
        return self.items[index].file

    def captions(self, index: int) -> list[str]:
        """Return the captions of an image."""
        return [text for _, text in self.items[index].captions]

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """Return an image at the size of the input (height, width, 3), cached up to a limit."""
        item = self.items[index]
        if item.file not in self._cache:
            image = self.files.read(item.file, item.where)
            resized = resize_and_pad(image, self.config.width, self.config.height)[0]
            if (len(self._cache) + 1) * resized.nbytes > _CACHE_BYTES:
                return resized
            self._cache[item.file] = resized
        return self._cache[item.file]

    def limit_length(
        self, length: Callable[[str], int], most: int, on_bad: OnBad
    ) -> "CaptionedImages":
        """Return the images with their captions of at most `most` tokens, counted by `length`.

        Raises: UserError naming the first longer caption, unless on_bad is skip, or if none is
                short enough.
        """
        bad_rows, items = BadRows(on_bad, "captions"), []
        for item in self.items:
            kept = []
            for where, text in item.captions:
                size = length(text)
                if size <= most:
                    kept.append((where, text))
                else:
                    bad_rows.add(
                        f"{where}: caption of {size} tokens, more than --data.max-length {most}"
                    )
            if kept:
                items.append(item._replace(captions=kept))
        if not items:
            raise UserError(
                f"{self.origin}: no caption has at most --data.max-length {most} tokens."
            )
        return replace(self, items=tuple(items), skipped=(*self.skipped, *bad_rows.skipped))


CaptionBatch = Batch[Tensor, Padded]
"""Images (rows, 3, height, width) in [0, 1]; a caption's token ids of each, BOS w1 .. wn EOS."""


class CaptionBatches(BatchesByCount):
    """Batches of images, each with one of its captions, drawn anew in each epoch.

    encode: returns the token ids of a caption.
    """

    def __init__(
        self, data: DescribedImages, encode: Callable[[str], list[int]], *, rows: int, seed: int
    ):
        super().__init__(rows=rows, seed=seed)
        self.data, self.encode = data, encode

    def examples(self, epoch: int, draw: np.random.Generator) -> NDArray[np.int64]:
        return np.asarray(self.data.epoch(epoch), np.int64)

    def collate(self, epoch: int, indices: Sequence[int]) -> CaptionBatch:
        pairs = []
        for i in indices:
            draw = generator(self.seed, _CHOICE, epoch, i)
            pairs.append((i, int(draw.integers(len(self.data.captions(i))))))
        return self.collate_pairs(pairs)

    def pairs(self) -> list[tuple[int, int]]:
        """Return every image with each of its captions, by their numbers."""
        return [(i, k) for i in self.data.epoch(0) for k in range(len(self.data.captions(i)))]

    def collate_pairs(self, pairs: Sequence[tuple[int, int]]) -> CaptionBatch:
        """Return the tensors of images with a caption of each, by their numbers."""
        target = pad([[BOS, *self.encode(self.data.captions(i)[k]), EOS] for i, k in pairs])
        source = stack_images([self.data.pixels(i) for i, _ in pairs])
        return Batch(source, target, tuple(i for i, _ in pairs))


def stack_images(images: Sequence[NDArray[np.uint8]]) -> Tensor:
    """Return images (height, width, 3) as pixels (rows, 3, height, width) within [0, 1]."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous().float() / 255


def read_captions(
    path: str | Path, images: str | Path | None, config: CaptionsConfig
) -> CaptionedImages:
    """Read a file of captions. Every image is opened once, so that none fails later.

    images: folder or tar of the images; None: the folder of the file.
    Raises: UserError naming the file, the line or the annotation.
    """
    path = Path(path)
    bad_rows = BadRows(config.on_bad, "images and captions")
    files = ImageFiles(path.parent if images is None else Path(images))
    is_coco = plain_name(path).endswith(".json")
    captions = read_coco_captions(path) if is_coco else _read_list(path, config, bad_rows)
    items: list[CaptionedFile] = []
    for file, (where, rows) in captions.items():
        with bad_rows.catch():
            kept = [(place, " ".join(text.split())) for place, text in rows]
            if not kept or not all(text for _, text in kept):
                raise UserError(f"{where}: image {file[:200]!r} has no caption, or an empty one.")
            files.read(file, where)
            items.append(CaptionedFile(file, where, kept))
    if not items:
        raise UserError(f"{path}: contains no usable image. {bad_rows.skipped.describe()}")
    return CaptionedImages(tuple(items), files, config, str(path), bad_rows.skipped)


def read_training_captions(
    config: CaptionsConfig, *, seed: int
) -> tuple[CaptionedImages, CaptionedImages]:
    """Read the training and validation captions: those of the config, or a split of training."""
    assert config.train is not None
    train = read_captions(config.train, config.train_images or config.images, config)
    if config.val is not None:
        return train, read_captions(config.val, config.val_images or config.images, config)
    parts = hold_out(len(train), config.val_share, seed=seed, origin=train.origin, noun="images")
    val = tuple(train.items[i] for i in parts.val)
    return (
        replace(train, items=tuple(train.items[i] for i in parts.train)),
        replace(train, items=val, skipped=(), notices=(parts.notice,)),
    )


def _read_list(
    path: Path, config: CaptionsConfig, bad_rows: BadRows
) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Read rows of an image file and a caption; rows of the same file belong to one image."""
    pairs = read_pairs(
        path, header=config.header, on_bad=bad_rows.on_bad, names=("image", "caption")
    )
    bad_rows.skipped.extend(pairs.skipped)
    captions: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    for index, (file, text) in enumerate(pairs):
        where = pairs.where(index)
        captions.setdefault(file, (where, []))[1].append((where, text))
    return captions
