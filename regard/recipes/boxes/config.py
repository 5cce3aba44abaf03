"""Settings of the recipe `boxes`: object detection. Importing them needs no torch."""

from dataclasses import replace
from typing import Annotated

from regard.data.config import BoxesConfig
from regard.models.config import DetectorConfig
from regard.recipes.base.answers import BoxesInImage
from regard.recipes.base.config import COSINE
from regard.recipes.base.entry import BATCHES_BY_COUNT, NO_SMOOTHING, Entry
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
    augment: bool = True
    """Random flips, scaling, translation and brightness in training."""
    batch: Batch = 8
    """Images per batch."""
    threshold: Fraction = 0.4
    """Minimum score of the boxes that `predict` and `look` show."""
    train: TrainConfig = replace(
        COSINE, steps=1500, lr=1e-3, warmup=150, weight_decay=1e-4, validate_every=250, average=3
    )
    """Training until the first limit (steps, epochs, minutes, patience), `batch` images a step."""


ENTRY = Entry(
    name="boxes",
    summary="object detection (DETR), from COCO, YOLO, VOC or CSV; shapes drawn on the fly if not "
    "given",
    config=BoxesRunConfig,
    answers=("threshold",),
    answer=BoxesInImage,
    input="image",
    unused=(*BATCHES_BY_COUNT, *NO_SMOOTHING),
    recipe="regard.recipes.boxes.recipe:BoxesRecipe",
)
