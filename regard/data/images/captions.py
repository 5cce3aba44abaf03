"""Data sets of images with captions: lists of image files and sentences, or COCO's captions; images
in a folder or tar.

    1.png<TAB>a black cat on a sofa                         FILE.tsv; a further line with 1.png is
    another caption {"image": "1.png", "caption": "a black cat on a sofa"}  FILE.jsonl; FILE.csv:
    the same columns {"images": [...], "annotations": [...]}                 FILE.json
    (regard.data.images.coco)

Every image is opened when the captions are read, so that none fails in training. Images are scaled
to fit into the size of the input, and padded with gray.

Source: chen2015 (the format of COCO's captions).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.bad_rows import BadRows
from regard.data.batches import Batch, BatchesByCount, generator, pad
from regard.data.config import CaptionsConfig, OnBad
from regard.data.held_out import hold_out
from regard.data.images.annotations import Caption, CaptionedFile, parse_caption
from regard.data.images.box_batches import resize_and_pad
from regard.data.images.coco import read_coco_captions
from regard.data.images.files import ImageFiles, find_images, open_first
from regard.data.text.lines import check_kind, has_array
from regard.data.text.pairs import read_pairs
from regard.data.tokenizer import BOS, EOS
from regard.errors import UserError
from regard.system.compression import plain_name

_CACHE_BYTES = 2 << 30
_CHOICE = 11
"""Stream of the random numbers that choose a caption."""
_ENDINGS = (".tsv", ".tab", ".csv", ".jsonl", ".ndjson", ".json")


@runtime_checkable
class DescribedImages(Protocol):
    """Data set of images with one or several captions each, by index."""

    @property
    def origin(self) -> str:
        """Description of the source, for messages."""
        ...

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
    sources: tuple[ImageFiles, ...]
    """Folder or tar of each image."""
    config: CaptionsConfig
    origin: str
    skipped: Sequence[str] = ()
    """Reason for each line or image that was skipped (on_bad = skip)."""
    notices: tuple[str, ...] = ()
    """Notices about the data, a line each."""
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
        return [caption.text for caption in self.items[index].captions]

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """Return an image at the size of the input (height, width, 3); cached up to a limit of
        memory."""
        item, source = self.items[index], self.sources[index]
        if item.file not in self._cache:
            image = source.open(item.file, item.where).image
            resized = resize_and_pad(image, self.config.width, self.config.height)[0]
            if (len(self._cache) + 1) * resized.nbytes > _CACHE_BYTES:
                return resized
            self._cache[item.file] = resized
        return self._cache[item.file]

    def take(self, index: Sequence[int]) -> "CaptionedImages":
        """Return the images of the given indices."""
        items = tuple(self.items[i] for i in index)
        return CaptionedImages(
            items, tuple(self.sources[i] for i in index), self.config, self.origin
        )

    def limit_length(
        self, length: Callable[[str], int], most: int, on_bad: OnBad
    ) -> "CaptionedImages":
        """Return the images with their captions of at most `most` tokens, counted by `length`.

        Raises: UserError naming the first longer caption, unless on_bad is skip, or if none is
                short enough.
        """
        bad_rows, items, sources = BadRows(on_bad, "captions"), [], []
        for item, source in zip(self.items, self.sources, strict=True):
            kept: list[Caption] = []
            for caption in item.captions:
                size = length(caption.text)
                if size <= most:
                    kept.append(caption)
                else:
                    bad_rows.add(
                        f"{caption.where}: the caption has {size} tokens, more than "
                        f"--data.max-length {most}"
                    )
            if kept:
                items.append(item._replace(captions=tuple(kept)))
                sources.append(source)
        if not items:
            raise UserError(
                f"{self.origin}: no caption has at most --data.max-length {most} tokens."
            )
        skipped = (*self.skipped, *bad_rows.skipped)
        return replace(self, items=tuple(items), sources=tuple(sources), skipped=skipped)


CaptionBatch = Batch[Tensor, Padded]
"""Images (rows, 3, height, width) within [0, 1]; token ids of a caption of each, BOS w1 .. wn
EOS."""


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
        """Return the indices of the images."""
        return np.asarray(self.data.epoch(epoch), np.int64)

    def collate(self, epoch: int, indices: Sequence[int]) -> CaptionBatch:
        """Return the tensors of the given images."""
        counts = [len(self.data.captions(i)) for i in indices]
        draws = [
            int(generator(self.seed, _CHOICE, epoch, i).integers(n))
            for i, n in zip(indices, counts, strict=True)
        ]
        return self.collate_pairs(list(zip(indices, draws, strict=True)))

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
    path: str | Path,
    images: str | Path | None,
    config: CaptionsConfig,
    *,
    option: str = "--data.images",
) -> CaptionedImages:
    """Read a file of captions. Every image is opened once, so that none fails later.

    images: folder or tar of the images; None: see CaptionsConfig.train_images.
    option: the option that names `images`, for messages.
    Raises: UserError naming the file, the line or the annotation, what was expected and what was
            found.
    """
    path = Path(path)
    bad_rows = BadRows(config.on_bad, "images and captions")
    if not plain_name(path).endswith(_ENDINGS) or path.is_dir():
        expected = f"captions in a file of {', '.join(_ENDINGS)} (COCO or an array; {option} names their images)"
        check_kind(path, expected)
        raise UserError(f"{path}: expected {expected}, got {path.name!r}.")
    is_coco = plain_name(path).endswith(".json") and not has_array(path)
    files = read_coco_captions(path, bad_rows) if is_coco else _read_list(path, config, bad_rows)
    sources, items, own = find_images(path, images, option=option), [], []
    for item in files:
        with bad_rows.catch():
            source, _ = open_first(sources, item.file, item.where)
            items.append(item)
            own.append(source)
    if not items:
        reason = (
            f" that can be used; first problem: {bad_rows.skipped[0]}" if bad_rows.skipped else "."
        )
        raise UserError(f"{path}: contains no image with a caption{reason}")
    return CaptionedImages(tuple(items), tuple(own), config, str(path), bad_rows.skipped)


def read_training_captions(
    config: CaptionsConfig, *, seed: int
) -> tuple[CaptionedImages, CaptionedImages]:
    """Read the training and validation captions: those of the config, or a split of the training
    captions."""
    assert config.train is not None
    train = read_captions(config.train, config.train_images, config, option="--data.train-images")
    if config.val is not None:
        return train, read_captions(
            config.val, config.val_images, config, option="--data.val-images"
        )
    parts = hold_out(len(train), config.val_share, seed=seed, origin=train.origin, noun="images")
    val = replace(train.take(parts.val), notices=(parts.notice,))
    return replace(train.take(parts.train), skipped=train.skipped), val


def _read_list(path: Path, config: CaptionsConfig, bad_rows: BadRows) -> list[CaptionedFile]:
    """Read lines of an image file and a caption; lines of the same file belong to one image."""
    pairs = read_pairs(
        path, header=config.header, on_bad=bad_rows.on_bad, names=("image", "caption")
    )
    for message in pairs.skipped:
        bad_rows.leave_out(message)
    captions: dict[str, list[Caption]] = {}
    for index, (file, text) in enumerate(pairs):
        with bad_rows.catch():
            captions.setdefault(file, []).append(parse_caption(text, pairs.where(index)))
    return [
        CaptionedFile(file, tuple(rows), rows[0].where) for file, rows in captions.items() if rows
    ]
