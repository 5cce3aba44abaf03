"""Settings of the recipe `points`: object detection in point clouds. Imports no torch."""

from dataclasses import replace
from typing import Annotated

from regard.data.config import PointsConfig
from regard.models.config import DetectorConfig
from regard.recipes.base.answers import BoxesInSpace
from regard.recipes.base.config import COSINE
from regard.recipes.base.entry import BATCHES_BY_COUNT, NO_ORDER, NO_SMOOTHING, Entry
from regard.settings.declare import settings
from regard.settings.ranges import Batch, Fraction, Range
from regard.training.config import TrainConfig


@settings
class PointsRunConfig:
    """Object detection in point clouds (3DETR), from tables; synthetic rooms without data."""

    data: PointsConfig = PointsConfig()
    """Clouds with boxes."""
    groups: Annotated[int, Range(1, 65_536)] = 256
    """Number of groups of points that the model attends to; their centers are sampled, each the
    farthest from those before it."""
    neighbors: Annotated[int, Range(1, 1_024)] = 24
    """Number of points in a group: those nearest to its center."""
    radius: Annotated[float, Range(0, 1e6, is_open_below=True)] = 0.4
    """Largest distance of a point from the center of its group, in meters."""
    model: DetectorConfig = DetectorConfig(num_queries=32, dropout=0.0)
    """The model. Coordinates are part of the items, so core.positions is none."""
    augment: bool = True
    """Random turns by 90 degrees, mirroring, scaling and missing points in training."""
    batch: Batch = 4
    """Clouds per batch."""
    threshold: Fraction = 0.4
    """Minimum score of the boxes that `predict` and `look` show."""
    train: TrainConfig = replace(
        COSINE, steps=2100, lr=2e-3, warmup=150, weight_decay=1e-4, validate_every=300, average=3
    )
    """Training until the first limit (steps, epochs, minutes, patience), `batch` clouds a step."""


ENTRY = Entry(
    name="points",
    config=PointsRunConfig,
    answers=("threshold",),
    answer=BoxesInSpace,
    input="points",
    unused=(*BATCHES_BY_COUNT, *NO_SMOOTHING, *NO_ORDER),
    recipe="regard.recipes.points.recipe:PointsRecipe",
)
