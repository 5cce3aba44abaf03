"""The recipe `images`: images to classes, the user's own or handwritten digits; scored by accuracy.

    pixels -> stem or patches -> items with places -> core: they read one another -> a learned query reads all -> class

Source: lectures, E (image to vector); dosovitskiy2021.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.config import OnBad
from regard.data.images import Images, embedded_digits, read_images, read_one, read_training, shape_of
from regard.data.labelled import Labels
from regard.errors import UserError
from regard.look.alignment import Alignment
from regard.look.record import record
from regard.models.build import build_image_classifier
from regard.models.classifier import Classifier
from regard.recipes.classify import Answer, measured, ranked, report, samples
from regard.recipes.config import Images as Config
from regard.recipes.folder import Run
from regard.recipes.task import Task, Trained

__all__ = ["ImageBatches", "ImagesTask", "TrainedImages", "read_shape", "save_shape", "task"]

_LABELS, _SHAPE = "labels.json", "images.json"
_BATCH = 256


@dataclass(frozen=True)
class ImageBatch:
    """Images within [0, 1] and the number of each one's class."""

    source: Tensor
    """(rows, channels, height, width)"""
    target: Tensor
    indices: tuple[int, ...]

    def to(self, device: torch.device | str) -> "ImageBatch":
        """The same batch on a device."""
        source, target = (tensor.to(device, non_blocking=True) for tensor in (self.source, self.target))
        return ImageBatch(source, target, self.indices)


class ImageBatches:
    """Batches of images in an order of their own for each epoch, moved and mirrored as the epoch shows them."""

    def __init__(self, pixels: np.ndarray, labels: Sequence[int], *, size: int, seed: int, augment: str = "none"):
        self.pixels, self.labels = pixels, np.asarray(labels, np.int64)
        self.size, self.seed, self.augment = size, seed, augment

    def plan(self, epoch: int) -> list[tuple[int, ...]]:
        """The rows of each batch: a pure function of (seed, epoch)."""
        order = np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.seed, epoch)))).permutation(
            len(self.labels)
        )
        return [tuple(order[i : i + self.size].tolist()) for i in range(0, len(order), self.size)]

    def collate(self, epoch: int, indices: Sequence[int]) -> ImageBatch:
        """The tensors of these rows."""
        rows = self.pixels[list(indices)]
        if self.augment != "none":
            rows = np.stack([self._shown(row, epoch, i) for row, i in zip(rows, indices, strict=True)])
        target = torch.from_numpy(self.labels[list(indices)])
        return ImageBatch(torch.from_numpy(rows).float() / 255, target, tuple(indices))

    def _shown(self, image: np.ndarray, epoch: int, index: int) -> np.ndarray:
        """The image moved by up to an eighth of its sides, zeros coming in, and perhaps mirrored."""
        draw = np.random.PCG64(np.random.SeedSequence((self.seed, epoch, index))).random_raw(3)
        if self.augment == "shift-flip" and draw[2] % 2:
            image = image[:, :, ::-1]
        height, width = image.shape[1:]
        down, right = (
            int(number % (2 * (side // 8) + 1)) - side // 8
            for number, side in zip(draw[:2], (height, width), strict=True)
        )
        moved = np.zeros_like(image)
        moved[:, max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)] = image[
            :, max(0, -down) : height + min(0, -down), max(0, -right) : width + min(0, -right)
        ]
        return moved


def save_shape(folder: Path, shape: tuple[int, int, int]) -> None:
    """Write what images a run reads: (channels, height, width)."""
    content = {"format": "regard-images", "version": 1, "shape": list(shape)}
    (folder / _SHAPE).write_text(json.dumps(content) + "\n", encoding="utf-8")


def read_shape(folder: Path) -> tuple[int, int, int]:
    """Read what `save_shape` wrote. Raises UserError naming the file."""
    path = folder / _SHAPE
    try:
        channels, height, width = (int(size) for size in json.loads(path.read_text(encoding="utf-8"))["shape"])
    except OSError as error:
        raise UserError(f"{path} is missing: the run is not complete ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{path}: damaged: it must hold the shape of the images") from error
    return channels, height, width


class ImagesTask(Task):
    """Images, their classes, and a classifier."""

    metric = "accuracy"
    labels: Labels
    shape: tuple[int, int, int]

    @property
    def config(self) -> Config:
        """All settings of the run."""
        assert isinstance(self.run.config, Config)
        return self.run.config

    def check(self) -> None:
        """Read all images."""
        self.shape = shape_of(self._learned[0])
        if self.config.data.test is not None:
            self.test_images()

    def learn(self, folder: Path) -> None:
        """The classes and the size of the training images."""
        train, _ = self._learned
        Labels.of(train.labels).save(folder / _LABELS)
        save_shape(folder, shape_of(train))

    def open(self, folder: Path) -> None:
        """The same."""
        self.labels = Labels.load(folder / _LABELS)
        self.shape = read_shape(folder)

    def batches(self) -> ImageBatches:
        """All training images, in a new order each epoch."""
        train, _ = self._learned
        keep, numbers = self.numbered(train)
        return ImageBatches(
            train.pixels[keep], numbers, size=self.config.batch, seed=self.run.seed, augment=self.config.augment
        )

    def model(self) -> Classifier:
        """For images of this size and these classes."""
        return build_image_classifier(
            self.config.model,
            shape=self.shape,
            num_classes=len(self.labels),
            patch=self.config.patch,
            label_smoothing=self.config.train.label_smoothing,
        )

    def describe(self) -> str:
        """What is read and said."""
        return f"images of {' x '.join(map(str, self.shape))}, {len(self.labels)} classes"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Accuracy, macro F1 and nll of the validation images."""
        return self.scores(model, self._learned[1])[0]

    def scores(
        self, model: nn.Module, images: Images, on_bad: OnBad | None = None
    ) -> tuple[dict[str, float], list[dict[str, str]]]:
        """The same of any images, and a few of them."""
        keep, numbers = self.numbered(images, on_bad)
        batches = ImageBatches(images.pixels[keep], numbers, size=_BATCH, seed=0)
        rows = (range(i, min(i + _BATCH, len(keep))) for i in range(0, len(keep), _BATCH))
        found, right = measured(model, (batches.collate(0, tuple(row)) for row in rows))
        return report(found, right), samples([images.where(i) for i in keep], found, right, self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """What answers call the classes."""
        given = self.config.data.names
        return given if len(given) == len(self.labels) else self.labels.names

    def has_test(self) -> bool:
        """Always for the digits."""
        return self.config.data.train is None or self.config.data.test is not None

    def test_images(self) -> Images:
        """The run's test images."""
        data = self.config.data
        if data.test is None:
            return embedded_digits("test")
        return self.told(read_images(data.test, data, self.shape))

    def trained(self, model: nn.Module, folder: Path) -> "TrainedImages":
        """The model with its classes."""
        return TrainedImages(self, model, folder)

    def numbered(self, images: Images, on_bad: OnBad | None = None) -> tuple[list[int], list[int]]:
        """Which images have a known class, and its number."""
        place = {"where": images.where, "origin": images.origin}
        on_bad = on_bad or self.config.data.on_bad
        return self.labels.numbers(images.labels, on_bad, **place, what=("class", "image"))

    def told(self, images: Images) -> Images:
        """The images; what was left out is told."""
        if images.skipped:
            self.tell(images.left_out())
        return images

    @cached_property
    def _learned(self) -> tuple[Images, Images]:
        """Images to learn from and to choose by."""
        train, val = read_training(self.config.data, seed=self.run.seed)
        return self.told(train), self.told(val)


class TrainedImages(Trained):
    """A classifier of images in use."""

    task: ImagesTask

    def predict(self, inputs: Sequence[str | Path], *, n_best: int | None = None) -> list[str] | list[list[Answer]]:
        """The likeliest class of each image file, in their order; with n_best, the best few with probabilities."""
        found = self.answers([str(path) for path in inputs], n_best=1 if n_best is None else n_best)
        return [best.text for best, *_ in found] if n_best is None else found

    def answers(self, inputs: Sequence[str], *, n_best: int, first: int = 1) -> list[list[Answer]]:
        """As `predict`, with probabilities."""
        if not inputs:
            return []
        pixels = np.stack([self._pixels(path, number) for number, path in enumerate(inputs, start=first)])
        rows = [self._probabilities(pixels[i : i + _BATCH]) for i in range(0, len(pixels), _BATCH)]
        return ranked(torch.cat(rows), self.task.names, n_best)

    def evaluate(
        self,
        path: str | Path | None = None,
        *,
        on_bad: OnBad = "error",
        tell: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Accuracy, macro F1 and nll on the run's test images, or on those of a folder or an IDX file."""
        if path is None:
            if not self.task.has_test():
                raise UserError(f"the run {self.folder} has no test data: name some (--data.test)")
            images = self.task.test_images()
        else:
            images = self.task.told(read_images(path, replace(self.config.data, on_bad=on_bad), self.task.shape))
        scores, shown = self.task.scores(self.model, images, None if path is None else on_bad)
        signature = f"{len(self.task.labels)} classes: {', '.join(self.task.names[:10])}"
        return {"data": images.origin, "examples": len(images), **scores, "signature": signature, "samples": shown}

    def look(self, text: str) -> list[Alignment]:
        """How much the pooling query read of each place of the image in a file, row by row, and what was said."""
        pixels = self._pixels(text, 1)[None]
        with record(self.model) as recording:
            found = self._probabilities(pixels)
        best = ranked(found, self.task.names, 1)[0][0]
        (name,) = [name for name in recording.names if name.startswith("pool.")]
        rows, columns = self.model.reads.grid
        labels = [f"{row + 1},{column + 1}" for row in range(rows) for column in range(columns)]
        title = f"{Path(text).name} -> {best.text} ({best.score:.2f})"
        return [Alignment(source=labels, target=[best.text], weights=recording[name][0][0], title=title)]

    def _pixels(self, path: str, number: int) -> np.ndarray:
        if not Path(path).is_file():
            raise UserError(f"input {number}: {path} is no file; give names of image files")
        data = self.config.data if self.config.data.size else replace(self.config.data, size=self.task.shape[1])
        return read_one(Path(path), data, self.task.shape)

    @torch.no_grad()
    def _probabilities(self, pixels: np.ndarray) -> Tensor:
        source = torch.from_numpy(pixels).float() / 255
        return self.model(source.to(next(self.model.parameters()).device)).cpu()


def task(run: Run, tell: Callable[[str], None]) -> ImagesTask:
    """This recipe at work."""
    return ImagesTask(run, tell)
