"""The recipe `images`: images to classes, labels or numbers, the user's own or handwritten digits.

    pixels -> stem or patches -> items with places -> core: they read one another -> a learned query reads all -> target

What a target is, how it is scored and how it is shown: regard.recipes.targets.

Source: lectures, E (image to vector); dosovitskiy2021.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.config import OnBad
from regard.data.images import Images, embedded_digits, read_images, read_training, shape_of
from regard.digests import recorded
from regard.errors import UserError
from regard.files import read_json
from regard.look.map import Seen
from regard.look.scene import Axis, Scene
from regard.models.build import build_image_classifier
from regard.models.classifier import Classifier
from regard.recipes.config import Images as Config
from regard.recipes.folder import Run
from regard.recipes.likelihood import of_answer
from regard.recipes.pictures import patches, pixels_of, shown
from regard.recipes.targets import Answer, NumberTarget, Said, Target, kind_of_target
from regard.recipes.task import Task, Trained, numbered
from regard.recipes.vector_scores import measured
from regard.telling import showing

_SHAPE = "images.json"
_BATCH = 256
_MOST_VALUES = 1 << 28


@dataclass(frozen=True)
class ImageBatch:
    """Images within [0, 1] and each one's target: the number of its class, or what else is learned."""

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

    def __init__(
        self, pixels: np.ndarray, labels: Sequence[int] | np.ndarray, *, size: int, seed: int, augment: str = "none"
    ):
        self.pixels, self.labels = pixels, np.asarray(labels)
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
    if not path.exists():
        raise UserError(f"{path} is missing: the run is not complete")
    return shape_in(path, read_json(path), of="the images")


def shape_in(path: Path, content: object, *, of: str) -> tuple[int, int, int]:
    """The shape (channels, height, width) that a run's JSON file holds. Raises UserError naming the file."""
    shape = content.get("shape") if isinstance(content, dict) else None
    if not (isinstance(shape, list) and len(shape) == 3 and all(type(size) is int and size > 0 for size in shape)):
        raise UserError(f"{path}: damaged: it must hold the shape of {of}")
    if math.prod(shape) > _MOST_VALUES:
        raise UserError(f"{path}: damaged: {of} of {' x '.join(map(str, shape))} are too large")
    return shape[0], shape[1], shape[2]


class ImagesTask(Task):
    """Images, their targets, and a model that answers each."""

    target: Target
    shape: tuple[int, int, int]

    def __init__(self, run: Run, tell: Callable[[str], None]):
        super().__init__(run, tell)
        self.kind = kind_of_target(self.config.data)
        self.metric, self.maximize = self.kind.metric, self.kind.maximize

    @property
    def config(self) -> Config:
        """All settings of the run."""
        assert isinstance(self.run.config, Config)
        return self.run.config

    def check(self) -> None:
        """Read all images."""
        train, _ = self._learned
        self.shape = shape_of(train)
        self.kind.learned(self.said(train), self.config.data)
        if self.config.data.test is not None:
            with recorded():  # decides no weights: no part of what the run was trained on
                self.test_images()

    def learn(self, folder: Path) -> None:
        """The targets and the size of the training images."""
        train, _ = self._learned
        self.kind.learned(self.said(train), self.config.data).save(folder)
        save_shape(folder, shape_of(train))

    def open(self, folder: Path) -> None:
        """The same."""
        self.target = self.kind.load(folder, self.config.data)
        self.shape = read_shape(folder)

    def batches(self) -> ImageBatches:
        """All training images, in a new order each epoch."""
        train, _ = self._learned
        keep, targets = self.target.learnable(self.said(train), self.tell)
        return ImageBatches(
            train.pixels[keep], targets, size=self.config.batch, seed=self.run.seed, augment=self.config.augment
        )

    def model(self) -> Classifier:
        """For images of this size and these targets."""
        config, smoothing = self.config.model, self.config.train.label_smoothing
        return build_image_classifier(
            config,
            shape=self.shape,
            patch=self.config.patch,
            writes=lambda dim: self.target.writer(dim, config, smoothing),
        )

    def describe(self) -> str:
        """What is read and said."""
        return f"images of {' x '.join(map(str, self.shape))}; {self.target.signature}"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """How good the model is on the validation images."""
        return self.scores(model, self._learned[1])[0]

    def scores(
        self, model: nn.Module, images: Images, on_bad: OnBad | None = None
    ) -> tuple[dict[str, float], list[dict[str, str]], int]:
        """The same of any images, a few of them, and how many."""
        keep, targets = self.target.rows(self.said(images, on_bad))
        batches = ImageBatches(images.pixels[keep], targets, size=_BATCH, seed=0)
        rows = (range(i, min(i + _BATCH, len(keep))) for i in range(0, len(keep), _BATCH))
        found, right = measured(model, (batches.collate(0, tuple(row)) for row in rows))
        shown = self.target.samples([images.where(i) for i in keep], found, right)
        return self.target.scores(found, right), shown, len(keep)

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
        """The model with its targets."""
        return TrainedImages(self, model, folder)

    def said(self, images: Images, on_bad: OnBad | None = None) -> Said:
        """What files say of images."""
        return Said(images.labels, images.where, images.origin, ("class", "image"), on_bad or self.config.data.on_bad)

    def told(self, images: Images) -> Images:
        """The images; what was left out is told."""
        for line in images.left_out():
            self.tell(line)
        return images

    @cached_property
    def _learned(self) -> tuple[Images, Images]:
        """Images to learn from and to choose by."""
        train, val = read_training(self.config.data, seed=self.run.seed)
        return self.told(train), self.told(val)


class TrainedImages(Trained):
    """A model that answers images, in use."""

    task: ImagesTask

    def predict(
        self, inputs: Sequence[str | Path | NDArray[Any]], *, n_best: int | None = None
    ) -> list[Any] | list[list[Answer]]:
        """The likeliest class of each image, in their order, or its labels (a tuple), or its number (or a tuple).

        inputs: image files, or bytes (channels, height, width) of the run's shape.
        With n_best, the best few answers with their probabilities.
        """
        if not len(inputs):
            return []
        answers = self._answers(inputs, 1)
        return self.task.target.values(answers) if n_best is None else self.task.target.ranked(answers, n_best)

    def answers(self, inputs: Sequence[str], *, n_best: int, first: int = 1) -> list[list[Answer]]:
        """As `predict`, for people."""
        return self.task.target.ranked(self._answers(inputs, first), n_best) if inputs else []

    def _answers(self, inputs: Sequence[str | Path | NDArray[Any]], first: int) -> Tensor:
        numbers = range(first, first + len(inputs))
        pixels = np.stack([self._pixels(one, i) for one, i in zip(inputs, numbers, strict=True)])
        names = [self._called(one, f"image {i}") for one, i in zip(inputs, numbers, strict=True)]
        parts = range(0, len(pixels), _BATCH)
        return torch.cat([self._answer(pixels[i : i + _BATCH], names[i : i + _BATCH]) for i in parts])

    def _pixels(self, one: str | Path | NDArray[Any], number: int) -> NDArray[np.uint8]:
        data = self.config.data if self.config.data.size else replace(self.config.data, size=self.task.shape[1])
        return pixels_of(one, number, data, self.task.shape)

    def evaluate(
        self,
        path: str | Path | None = None,
        *,
        on_bad: OnBad = "error",
        tell: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Scores of the target's kind on the run's test images, or on those of a folder, a list or an IDX file."""
        if path is None:
            if not self.task.has_test():
                raise UserError(f"the run {self.folder} has no test data: name some (--data.test)")
            images = self.task.test_images()
        else:
            images = self.task.told(read_images(path, replace(self.config.data, on_bad=on_bad), self.task.shape))
        scores, shown, count = self.task.scores(self._model, images, None if path is None else on_bad)
        about = {"signature": self.task.target.signature, "samples": shown}
        return {"data": images.origin, "examples": count, **scores, **about}

    def test_input(self, index: int) -> NDArray[np.uint8]:
        """The pixels (channels, height, width) of an image of the test data."""
        self._check_test()
        images = self.task.test_images()
        number = numbered(range(len(images)), index, images.origin)
        return self._named(images.pixels[number], f"test image {index}")

    def likelihood(self, given: str | Path | NDArray[Any], seen: Seen) -> Tensor:
        """log p of the class that is said, or of all labels that are."""
        source = torch.from_numpy(self._pixels(given, 1)[None]).float() / 255
        return of_answer(self.task.target, self._model(source.to(next(self._model.parameters()).device)))

    def check_likelihood(self) -> None:
        """Raises UserError for a run that answers with numbers."""
        if isinstance(self.task.target, NumberTarget):
            raise UserError(self._improbable("numbers"))

    @torch.no_grad()
    def _answer(self, pixels: NDArray[np.uint8], names: Sequence[str]) -> Tensor:
        source = torch.from_numpy(pixels).float() / 255
        with showing(lambda: self._scenes(pixels)) as scenes:
            found = self._model(source.to(next(self._model.parameters()).device)).cpu()
        for scene, name, row in zip(scenes, names, found.split(1), strict=bool(scenes)):
            best = self.task.target.ranked(row, 1)[0][0]
            scene.title = f"{name} -> {self.task.target.title(best)}"
            scene.axes["queries"] = Axis(labels=(best.text,), what="answer")
        return found

    def _scenes(self, pixels: NDArray[np.uint8]) -> list[Scene]:
        """What is read of images, for those who look on."""
        source = patches(self._model.reads)
        return [Scene(axes={"source": source}, pictures={"image": shown(one)}) for one in pixels]


def task(run: Run, tell: Callable[[str], None]) -> ImagesTask:
    """This recipe at work."""
    return ImagesTask(run, tell)
