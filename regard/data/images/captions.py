"""Data sets of images with captions; docs/recipes/caption.md describes the files.

Source: chen2015 (the format of COCO's captions).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.masks import Padded
from regard.data.bad_rows import BadRows
from regard.data.batches import Batch, BatchesByCount, generator, pad
from regard.data.config import CaptionsConfig, OnBad
from regard.data.embedded.captioned_shapes import CaptionedShapes
from regard.data.images.box_batches import Frame, cache_resized, stack_images
from regard.data.images.coco import read_coco_captions
from regard.data.images.files import open_images
from regard.data.text.pairs import read_pairs
from regard.data.tokenizer import TARGET_ENDS, Ends
from regard.errors import UserError
from regard.system.files import one_path, plain_name

_CHOICE = 11
"""Stream of the random numbers that choose a caption."""


class CaptionedFile(NamedTuple):
    """File name of an image, with at least one caption."""

    file: str
    captions: list[tuple[str, str]]
    """Location and text of each."""


@dataclass(frozen=True)
class CaptionedImages:
    """Images and captions that were read from a file; an epoch has all of them."""

    items: tuple[CaptionedFile, ...]
    load: Callable[[str], tuple[NDArray[np.uint8], Frame]]
    """Function that returns the resized image of a file."""
    origin: str
    notices: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def epoch(self, number: int) -> range:
        return range(len(self.items))

    def name(self, index: int) -> str:
        return self.items[index].file

    def captions(self, index: int) -> list[str]:
        return [text for _, text in self.items[index].captions]

    def pixels(self, index: int) -> NDArray[np.uint8]:
        """Return an image at the size of the input (height, width, 3)."""
        return self.load(self.items[index].file)[0]

    def take(self, index: Sequence[int]) -> "CaptionedImages":
        return replace(self, items=tuple(self.items[i] for i in index))

    def limit_length(
        self, length: Callable[[str], int], most: int, on_bad: OnBad
    ) -> "CaptionedImages":
        """Return the images with their captions of at most `most` tokens, counted by `length`."""
        bad_rows, items = BadRows(on_bad, "captions"), []
        for item in self.items:
            kept = []
            for where, text in item.captions:
                size = length(text)
                if size <= most:
                    kept.append((where, text))
                    continue
                problem = f"caption of {size} tokens, more than --data.max-length {most}"
                bad_rows.add(f"{where}: {problem}")
            if kept:
                items.append(item._replace(captions=kept))
        if not items:
            raise UserError(f"{self.origin}: no caption has at most --data.max-length {most}")
        notices = (*self.notices, *bad_rows.notices(self.origin))
        return replace(self, items=tuple(items), notices=notices)


DescribedImages = CaptionedImages | CaptionedShapes
"""Images with one or several captions each, by index."""

CaptionBatch = Batch[Tensor, Padded]
"""Images (rows, 3, height, width) in [0, 1]; token ids of a caption of each, and those around."""


@dataclass(eq=False)
class CaptionBatches(BatchesByCount):
    """Batches of images, each with one of its captions, drawn anew in each epoch."""

    data: DescribedImages
    encode: Callable[[str], list[int]]
    """Function that returns the token ids of a caption."""
    ends: Ends = TARGET_ENDS

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
        target = pad([self.encode(self.data.captions(i)[k]) for i, k in pairs], self.ends)
        source = stack_images([self.data.pixels(i) for i, _ in pairs])
        return Batch(source, target, tuple(i for i, _ in pairs))


def read_captions(
    path: str | Path | Sequence[str], images: str | Path | None, config: CaptionsConfig
) -> CaptionedImages:
    """Read a file of captions. Every image, in a folder or tar (None: the folder of the file), is
    opened once, so that none fails later. Raises UserError naming the file and the line."""
    path = one_path(path)
    bad_rows = BadRows(config.on_bad, "images and captions")
    read_image = open_images(path.parent if images is None else Path(images))
    captions: dict[str, list[tuple[str, str]]] = {}
    notices: tuple[str, ...] = ()
    if plain_name(path).endswith(".json"):
        captions = read_coco_captions(path)
    else:
        pairs = read_pairs(path, config, names=("image", "caption"))
        notices = pairs.notices
        for index, (file, text) in enumerate(pairs):
            captions.setdefault(file, []).append((pairs.where(index), text))
    items: list[CaptionedFile] = []
    for file, rows in captions.items():
        with bad_rows.catch(rows[0][0] if rows else str(path)):
            kept = [(where, " ".join(text.split())) for where, text in rows]
            if not kept or not all(text for _, text in kept):
                raise UserError(f"image {file[:200]!r} has no caption, or an empty one")
            read_image(file)
            items.append(CaptionedFile(file, kept))
    if not items:
        raise UserError(f"{path}: contains no usable image. {bad_rows.describe()}")
    load = cache_resized(read_image, config.width, config.height)
    return CaptionedImages(tuple(items), load, str(path), (*notices, *bad_rows.notices(path)))
