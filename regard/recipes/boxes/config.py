"""Settings of the recipe `boxes`: object detection. Importing them needs no torch."""

from dataclasses import replace
from typing import Annotated

from regard.data.config import BoxesConfig, ImageAugmentation, used_augmentation
from regard.models.config import DetectorConfig
from regard.recipes.base.answers import BoxesInImage
from regard.recipes.base.config import COSINE
from regard.recipes.base.entry import BATCHES_BY_COUNT, NO_ORDER, NO_SMOOTHING, Entry
from regard.settings.declare import settings
from regard.settings.ranges import Batch, Fraction, Range
from regard.training.config import TrainConfig


@settings
class BoxesRunConfig:
    """Object detection (DETR), from COCO, YOLO, VOC, CVAT, CSV ...; drawn shapes without data."""

    data: BoxesConfig = BoxesConfig(width=128, height=96)
    """Images with boxes, and the input size of the model."""
    downsampling_layers: Annotated[int, Range(1, 16)] = 3
    """Number of stride-2 convolutions: a position covers 2^downsampling_layers pixels per side."""
    model: DetectorConfig = DetectorConfig()
    """The model. Positions on the image have learned embeddings, so core.positions is none."""
    augment: tuple[ImageAugmentation, ...] = ("auto",)
    """Random changes of images with their boxes in training, any of: shift by up to an eighth of
    the sides; zoom by 0.8 to 1.4; crop of half of the area or more, scaled to the image; flip and
    flip-vertical, with probability 1/2; color: contrast, tint and brightness; randaugment: 2 of 14
    operations. A box of which less than a third stays inside the image is dropped. auto: all but
    shift, crop and randaugment."""
    batch: Batch = 8
    """Images per batch."""
    threshold: Fraction = 0.4
    """Minimum score of the boxes that `predict` and `look` show."""
    train: TrainConfig = replace(
        COSINE, steps=1500, lr=1e-3, warmup=150, weight_decay=1e-4, validate_every=250, average=3
    )
    """Training until the first limit (steps, epochs, minutes, patience), `batch` images a step."""

    def __post_init__(self) -> None:
        used_augmentation(self.augment)


ENTRY = Entry(
    name="boxes",
    config=BoxesRunConfig,
    answers=("threshold",),
    answer=BoxesInImage,
    input="image",
    unused=(*BATCHES_BY_COUNT, *NO_SMOOTHING, *NO_ORDER),
    recipe="regard.recipes.boxes.recipe:BoxesRecipe",
)
