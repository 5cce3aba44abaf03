"""Settings of the recipe `tracks`: trajectory forecasting. Importing them needs no torch."""

from dataclasses import replace

from regard.data.config import TracksConfig
from regard.layers.positions.config import NoPositionsConfig
from regard.models.config import ForecasterConfig
from regard.models.cores.config import TransformerConfig
from regard.recipes.base.answers import Forecasts, ForecastsOfPaths
from regard.recipes.base.config import COSINE
from regard.recipes.base.entry import BATCHES_BY_COUNT, NO_DECODER, NO_SMOOTHING, Entry
from regard.settings.declare import settings
from regard.settings.ranges import Batch
from regard.training.config import TrainConfig


@settings
class TracksRunConfig:
    """Trajectory forecasting of pedestrians, from recordings; synthetic crowds without data."""

    data: TracksConfig = TracksConfig()
    """Recordings: text files of frame, id, x, y."""
    batch: Batch = 256
    """Pedestrians per batch."""
    model: ForecasterConfig = ForecasterConfig(
        core=TransformerConfig(
            layers=2, width=64, feedforward=128, activation="gelu", positions=NoPositionsConfig()
        ),
        dropout=0.1,
    )
    """The model. A set has no order, so core.positions is none."""
    train: TrainConfig = replace(
        COSINE,
        steps=2500,
        lr=1e-3,
        warmup=100,
        precision="float32",
        validate_every=250,
        average=3,
    )
    """Training, until the first limit (steps, epochs, minutes or patience) is reached."""

    def __post_init__(self) -> None:
        if self.model.joint and self.data.neighbors != TracksConfig().neighbors:
            raise ValueError("data.neighbors must not be given with model.joint: it has no effect")


ENTRY = Entry(
    name="tracks",
    config=TracksRunConfig,
    answer=lambda config: ForecastsOfPaths if config.model.paths > 1 else Forecasts,
    input="tracks",
    unused=(*NO_DECODER, *BATCHES_BY_COUNT, *NO_SMOOTHING),
    recipe="regard.recipes.tracks.recipe:TracksRecipe",
)
