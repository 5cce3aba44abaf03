"""Recipe `images`: image classification, multi-label classification or regression.

    pixels -> stem or patches -> items with position embeddings -> core (encoder) -> pooling ->
    target

Targets: regard.recipes.targets.base.

Source: lectures, E.6 (image to vector); dosovitskiy2021.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.images.dataset import ImageDataset
from regard.data.images.files import ENDINGS
from regard.data.images.image_batches import ImageBatch, ImageBatches
from regard.data.tables import TABLES
from regard.look.sample import Sample
from regard.models.build import build_classifier
from regard.models.model import Model
from regard.models.readers.images import ImageReader
from regard.recipes.base.active import ActiveModel
from regard.recipes.base.pictures import ImageSplits, InputShape, patch_axis, to_picture
from regard.recipes.base.recipe import Dataset, Example
from regard.recipes.images.config import ImagesRunConfig
from regard.recipes.targets.labels import ClassTarget
from regard.recipes.targets.recipe import TargetRecipe
from regard.system.files import plain_name
from regard.system.progress import track


class ImagesRecipe(TargetRecipe[ImagesRunConfig]):
    """Recipe of image classification and regression."""

    nouns = ("class", "image")
    unit = "images"
    batch_rows = 256
    tables = (*TABLES, "ubyte")
    files_of_folder = ENDINGS

    def load(self, split: str) -> Dataset[ImageDataset]:
        return self._splits.load(split, self.config.data)

    def label_texts(self, data: ImageDataset) -> Sequence[str]:
        return data.labels

    def fit(self, train: Dataset[ImageDataset]) -> dict[str, Any]:
        target = self.kind.fit(self.raw_targets(train), self.config.data)
        return {InputShape.file: InputShape(train.data.shape), **target.artifacts()}

    def open(self, folder: Path) -> None:
        super().open(folder)
        self._splits.shape = InputShape.load(folder / InputShape.file).shape

    def batches(self) -> ImageBatches:
        train = self.read_encoded(self.train)
        return ImageBatches(
            train.data.pixels,
            train.targets,
            augment=self.config.used_augment,
            mixup=self.config.mixup,
            num_classes=len(self.target.names) if isinstance(self.target, ClassTarget) else 0,
            rows=self.config.batch,
            seed=self.run.seed,
        )

    def model(self) -> Model:
        config, smoothing = self.config.model, self.config.train.label_smoothing
        reader = ImageReader(
            self._splits.shape,
            config.core.width,
            patch=self.config.patch,
            positions=self.config.patch_positions,
            mean=self.config.image_mean,
            std=self.config.image_std,
            dropout=config.dropout,
        )
        build = partial(self.target.build_writer, config=config, label_smoothing=smoothing)
        parts = self.parts()
        return build_classifier(
            config, reader, lambda dim, pool: build(dim, pool=pool), parts=parts
        )

    def describe(self) -> str:
        return f"images of {' x '.join(map(str, self._splits.shape))}; {self.target.signature}"

    def evaluation_batches(self, dataset: Dataset[ImageDataset]) -> Iterator[ImageBatch]:
        batches = ImageBatches(dataset.data.pixels, dataset.targets, rows=self.batch_rows, seed=0)
        for rows in track(self.plan(dataset.targets), "images", len(dataset)):
            yield batches.collate(0, rows)

    def input_column(self, path: Path) -> str:
        return "file" if plain_name(path).endswith(TABLES) else ""

    def preprocess(self, given: Any, number: int) -> list[Any]:
        return [self._splits.read_pixels(given, number)]

    def collate(self, rows: Sequence[NDArray[np.uint8]]) -> Tensor:
        return torch.from_numpy(np.stack(rows)).float() / 255

    def input_sample(self, inference: ActiveModel, example: Example) -> Sample:
        return Sample(
            title=example.name,
            axes={"source": patch_axis(inference.model.reader)},
            pictures={"image": to_picture(example.rows[0])},
        )

    @cached_property
    def _splits(self) -> ImageSplits:
        return ImageSplits(self.config.data, self.run.seed)
