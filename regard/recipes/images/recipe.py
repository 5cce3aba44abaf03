"""Recipe `images`: image classification, multi-label classification or regression.

    pixels -> stem or patches -> items with position embeddings -> core (encoder) -> attention pooling -> target

Targets: regard.recipes.targets.base.

Source: lectures, E (image to vector); dosovitskiy2021.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.config import OnBad
from regard.data.images.dataset import ImageDataset, image_shape, load_digits, read_images, read_training_images
from regard.errors import UserError
from regard.look.maps import SampleMaps
from regard.look.sample import Axis, Sample
from regard.models.build import build_classifier
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.recipes.base.image_batches import ImageBatches
from regard.recipes.base.likelihood import answer_log_prob
from regard.recipes.base.pictures import load_pixels, patch_axis, read_shape, save_shape, to_picture
from regard.recipes.base.recipe import Recipe, TrainedRun, get_input
from regard.recipes.base.run import Run
from regard.recipes.images.config import ImagesRunConfig as Config
from regard.recipes.metrics.vectors import predict_all
from regard.recipes.targets.base import Answer, RawTargets, Target
from regard.recipes.targets.kinds import get_target_type
from regard.recipes.targets.numbers import NumberTarget
from regard.system.fingerprints import record_digests

_BATCH = 256


class ImagesRecipe(Recipe):
    """Recipe of image classification and regression."""

    target: Target
    shape: tuple[int, int, int]

    def __init__(self, run: Run, notify: Callable[[str], None]):
        super().__init__(run, notify)
        self.kind = get_target_type(self.config.data)
        self.metric, self.higher_is_better = self.kind.metric, self.kind.higher_is_better

    @property
    def config(self) -> Config:
        """All settings of the run."""
        assert isinstance(self.run.config, Config)
        return self.run.config

    def check(self) -> None:
        """Read all images."""
        train, _ = self._splits
        self.shape = image_shape(train)
        self.kind.fit(self.get_raw_targets(train), self.config.data)
        if self.config.data.test is not None:
            with record_digests():  # test data is not part of the fingerprint of the training data
                self.test_images()

    def learn(self, folder: Path) -> None:
        """Save the targets and the shape of the training images."""
        train, _ = self._splits
        self.kind.fit(self.get_raw_targets(train), self.config.data).save(folder)
        save_shape(folder, image_shape(train))

    def open(self, folder: Path) -> None:
        """Load what `learn` wrote."""
        self.target = self.kind.load(folder, self.config.data)
        self.shape = read_shape(folder)

    def batches(self) -> ImageBatches:
        """Return batches of the training images, shuffled in each epoch."""
        train, _ = self._splits
        keep, targets = self.target.encode_for_training(self.get_raw_targets(train), self.notify)
        return ImageBatches(
            train.pixels[keep], targets, size=self.config.batch, seed=self.run.seed, augment=self.config.augment
        )

    def model(self) -> Model:
        """Return a classifier for this image size and these targets."""
        config, smoothing = self.config.model, self.config.train.label_smoothing
        reads = ImageReader(self.shape, config.core.width, patch=self.config.patch, dropout=config.dropout)
        return build_classifier(config, reads, lambda dim, pool: self.target.build_writer(dim, config, smoothing, pool))

    def describe(self) -> str:
        """Return the input size and the possible answers."""
        return f"images of {' x '.join(map(str, self.shape))}; {self.target.signature}"

    def measure(self, model: nn.Module) -> dict[str, float]:
        """Return the metrics on the validation images."""
        return self.score(model, self._splits[1])[0]

    def score(
        self, model: nn.Module, images: ImageDataset, on_bad: OnBad | None = None
    ) -> tuple[dict[str, float], list[dict[str, str]], int]:
        """Return the metrics of the images, a few outputs, and the number of images."""
        keep, targets = self.target.encode(self.get_raw_targets(images, on_bad))
        batches = ImageBatches(images.pixels[keep], targets, size=_BATCH, seed=0)
        rows = (range(i, min(i + _BATCH, len(keep))) for i in range(0, len(keep), _BATCH))
        answers, references = predict_all(model, (batches.collate(0, tuple(row)) for row in rows))
        samples = self.target.make_samples([images.where(i) for i in keep], answers, references)
        return self.target.score(answers, references), samples, len(keep)

    def has_test(self) -> bool:
        """Return True if there is test data; the built-in digits always have it."""
        return self.config.data.train is None or self.config.data.test is not None

    def test_images(self) -> ImageDataset:
        """Return the test images of the run."""
        data = self.config.data
        if data.test is None:
            return load_digits("test")
        return self.report_skipped(read_images(data.test, data, self.shape))

    def build_run(self, model: nn.Module, folder: Path) -> "TrainedImages":
        """Return the trained run of this model."""
        return TrainedImages(self, model, folder)

    def get_raw_targets(self, images: ImageDataset, on_bad: OnBad | None = None) -> RawTargets:
        """Return the unparsed targets of the images."""
        return RawTargets(
            images.labels, images.where, images.origin, ("class", "image"), on_bad or self.config.data.on_bad
        )

    def report_skipped(self, images: ImageDataset) -> ImageDataset:
        """Report what was left out, and return the images."""
        for line in images.left_out():
            self.notify(line)
        return images

    @cached_property
    def _splits(self) -> tuple[ImageDataset, ImageDataset]:
        """Training and validation images."""
        train, val = read_training_images(self.config.data, seed=self.run.seed)
        return self.report_skipped(train), self.report_skipped(val)


class TrainedImages(TrainedRun):
    """Trained run of the recipe `images`."""

    recipe: ImagesRecipe

    def predict(
        self, inputs: Sequence[str | Path | NDArray[Any]], *, n_best: int | None = None
    ) -> list[Any] | list[list[Answer]]:
        """Return the most likely class of each image, or its labels (a tuple), or its number (or a tuple of numbers).

        inputs: image files, or uint8 arrays (channels, height, width) of the run's image shape.
        With n_best, return the best answers with their probabilities.
        """
        if not len(inputs):
            return []
        answers = self._predict_all(inputs, 1)
        return self.recipe.target.to_values(answers) if n_best is None else self.recipe.target.rank(answers, n_best)

    def answers(self, inputs: Sequence[str], *, n_best: int, first: int = 1) -> list[list[Answer]]:
        """Return the answers of each image as text, best first."""
        return self.recipe.target.rank(self._predict_all(inputs, first), n_best) if inputs else []

    def evaluate(
        self,
        path: str | Path | None = None,
        *,
        on_bad: OnBad = "error",
        notify: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Return the metrics on the run's test images, or on those of a folder, a list or an IDX file."""
        if path is None:
            self._check_test()
            images = self.recipe.test_images()
        else:
            images = self.recipe.report_skipped(
                read_images(path, replace(self.config.data, on_bad=on_bad), self.recipe.shape)
            )
        scores, samples, count = self.recipe.score(self._model, images, None if path is None else on_bad)
        return {
            "data": images.origin,
            "examples": count,
            **scores,
            "signature": self.recipe.target.signature,
            "samples": samples,
        }

    def test_input(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels (channels, height, width) of an image of the test data."""
        self._check_test()
        images = self.recipe.test_images()
        number = get_input(range(len(images)), index, images.origin)
        return self._set_name(images.pixels[number], f"test image {index}")

    def likelihood(self, given: str | Path | NDArray[Any], maps: SampleMaps) -> Tensor:
        """Return log p of the predicted class, or of all predicted labels."""
        source = torch.from_numpy(self._load_pixels(given, 1)[None]).float() / 255
        return answer_log_prob(self.recipe.target, self._model(source.to(next(self._model.parameters()).device)))

    def check_likelihood(self) -> None:
        """Raise UserError for a run that predicts numbers."""
        if isinstance(self.recipe.target, NumberTarget):
            raise UserError(self._no_probability_message("numbers"))

    def _predict_all(self, inputs: Sequence[str | Path | NDArray[Any]], first: int) -> Tensor:
        numbers = range(first, first + len(inputs))
        pixels = np.stack([self._load_pixels(given, i) for given, i in zip(inputs, numbers, strict=True)])
        names = [self._get_name(given, f"image {i}") for given, i in zip(inputs, numbers, strict=True)]
        parts = range(0, len(pixels), _BATCH)
        return torch.cat([self._predict_batch(pixels[i : i + _BATCH], names[i : i + _BATCH]) for i in parts])

    def _load_pixels(self, given: str | Path | NDArray[Any], number: int) -> NDArray[np.uint8]:
        data = self.config.data if self.config.data.size else replace(self.config.data, size=self.recipe.shape[1])
        return load_pixels(given, number, data, self.recipe.shape)

    @torch.no_grad()
    def _predict_batch(self, pixels: NDArray[np.uint8], names: Sequence[str]) -> Tensor:
        source = torch.from_numpy(pixels).float() / 255
        with self._segment(lambda: self._look_samples(pixels)) as samples:
            answers = self._model(source.to(next(self._model.parameters()).device)).cpu()
        for sample, name, row in zip(samples, names, answers.split(1), strict=bool(samples)):
            best = self.recipe.target.rank(row, 1)[0][0]
            sample.title = f"{name} -> {self.recipe.target.format_title(best)}"
            sample.axes["queries"] = Axis(labels=(best.text,), kind="answer")
        return answers

    def _look_samples(self, pixels: NDArray[np.uint8]) -> list[Sample]:
        """Return the samples of a look at these images."""
        source = patch_axis(self._model.reads)
        return [Sample(axes={"source": source}, pictures={"image": to_picture(image)}) for image in pixels]


def create_recipe(run: Run, notify: Callable[[str], None]) -> ImagesRecipe:
    """Create the recipe of a run."""
    return ImagesRecipe(run, notify)
